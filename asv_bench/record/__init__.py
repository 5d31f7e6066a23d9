"""Runs that are recorded in docs/benchmarks, one a module: ``python -m asv_bench.record.NAME``, from the root.

``products``        both formats beside MKL, SciPy and pydata/sparse on a CPU, beside CuPy on a GPU (``make bench``)
``gpu``             what asarray chooses beside cuSPARSE, CuPy and PyTorch (``make bench-gpu``)
``gpu_columns``     A @ X with several numbers of columns, beside every way of cuSPARSE, CuPy and PyTorch
``choice``          what asarray chooses beside every candidate, on the matrices of ``kinds``
``dask_gpus``       CG over several GPUs
``store_stream``    products with a matrix on disk

``products_page`` and ``gpu_page`` write their pages, ``pages`` is what both share; ``gpu_peers`` are cuSPARSE's
products and PyTorch's, ``machine`` is what is measured on, ``inputs`` what is measured. The clock is the package's,
``core.clocks``.
"""
