"""What both formats share: the array class, its operations on values and on the canonical CSR, NumPy's protocols."""
