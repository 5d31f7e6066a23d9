"""Runs that are recorded in docs/benchmarks, one a module: ``python -m asv_bench.record.NAME``, from the root.

``products``        both formats beside MKL, SciPy and pydata/sparse on a CPU, beside CuPy on a GPU (``make bench``)
``gpu``             what asarray chooses beside cuSPARSE, CuPy and PyTorch (``make bench-gpu``, ``make bench-unseen``)
``gpu_columns``     A @ X and A.T @ X beside every way of cuSPARSE, CuPy and PyTorch (``make bench-columns``)
``solve``           iterations of cg beside SciPy's, CuPy's and Warp's (``make bench-solve``)
``stacks``          stacks beside the block diagonal of the same arrays, and Warp's batched cg
``few_values``      values in few bytes beside plain ones (``make bench-few``)
``ops``             what a program does around a product, beside SciPy (``make bench-ops``)
``ablate``          what each candidate of gpu/plan.py buys (``make ablate``)
``foreign``         what a GPU with another profile loses by the choice of a format, measured or not
``choice``          what asarray chooses beside every candidate, on the matrices of ``families``
``fit``             constants of the choice on a GPU, fitted to what ``choice`` has timed
``dask_gpus``       CG over several GPUs
``store_stream``    products with a matrix on disk

``make record-gpu`` makes the whole record of a GPU. ``products_page``, ``gpu_page`` and ``columns_page`` write their
pages, ``pages`` is what they share; ``machine`` is what is measured on, ``inputs`` what is measured. ``gpu_peers``
are the products of cuSPARSE, ``clocks`` is what a record asks of a clock beside ``cvrarray.core.clocks``.
"""
