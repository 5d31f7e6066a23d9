"""What runs the kernels: compiled code and its cache on disk, aligned memory, and threads."""
