"""Iterative solvers."""

from .cg import CG, cg
from .solution import Solution

__all__ = ["CG", "Solution", "cg"]
