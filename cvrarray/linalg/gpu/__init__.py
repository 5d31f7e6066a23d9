"""Solvers on a GPU: their loops as CUDA graphs and as single kernels, whose tests for the end are on the device."""
