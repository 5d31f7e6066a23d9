"""PyTorch: ``A @ tensor`` without a copy; :func:`matmul`, :func:`sddmm` and :func:`solve`, operators with gradients that
``torch.compile`` takes.

PyTorch is imported with this package, and this package when it is asked for or a tensor meets an array.
"""

from ..core.extensions import optional

with optional("cvrarray.torch", "PyTorch", "torch"):
    from .products import matmul, multiply, sddmm
    from .solves import solve
    from .stacks import multiply_stack, solve_stack, stack

__all__ = ["matmul", "multiply", "multiply_stack", "sddmm", "solve", "solve_stack", "stack"]
