"""Solvers on the CPU: fused kernels of vectors, compiled by Numba, and the loop of conjugate gradients."""
