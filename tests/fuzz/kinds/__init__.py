"""The kinds of inputs: a module each, with ``BASES``, ``propose`` and ``examine``."""
