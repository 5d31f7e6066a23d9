"""The formats on the CPU: pure functions on raw NumPy arrays, compiled by Numba. No array class is known here.

``cvr``, ``bbcsr`` and ``csr`` have the functions of the formats, under the same names as on the GPU. ``statistics``
counts what the choice of a format needs; ``staging`` holds panels of a store. What they share lies in folders:
``simd`` (vectors in registers), ``runtime`` (compilation, memory, threads) and ``products`` (what the products of
both formats share).
"""
