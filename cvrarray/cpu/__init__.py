"""The formats on the CPU: pure functions on raw NumPy arrays, compiled by Numba. No array class is known here."""
