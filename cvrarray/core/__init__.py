"""The base of all other folders: devices, tables in their memory, the clock, file writes."""
