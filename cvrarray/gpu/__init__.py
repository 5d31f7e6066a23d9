"""The GPU's side of both formats: grid arithmetic and kernel launches on raw CuPy arrays."""
