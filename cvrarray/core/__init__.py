"""What everything else rests on: devices, and the tables that lie in their memory."""
