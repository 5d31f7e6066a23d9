"""asv's benchmarks, by operation; matrix, dtype and who computes (a format of ours, or a peer) are parameters.

The environment variable ``CVRARRAY_BENCH_SCALE`` names the size of the matrices: ``small`` (half a million nonzeros,
seconds), ``medium`` (20 million; the default) or ``full``. Times on the CPU are asv's own; times on a GPU are CUDA
events (``track_*``), taken by the clock of ``cvrarray bench``.
"""
