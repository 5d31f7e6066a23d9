"""Where matrices come in: every kind of input becomes a canonical CSR here, and is checked here."""
