"""Everything that measures the project; none of it is in the wheel.

``benchmarks``  asv's benchmarks, one file a group of operations: ``make bench-asv``, ``make bench-check``
``record``      runs beside other libraries, and the pages of docs/benchmarks: ``make bench``, ``make bench-gpu``; Dask on
                several GPUs, and products with matrices on disk
"""
