"""Our arrays as Dask's chunks. Importing this package imports nothing of Dask; see ``docs/architecture.md``.

=============================  ==========================================================================
:mod:`cvrarray.dask.panels`    ``to_dask``: a matrix as a dask array whose chunks are panels of rows
:mod:`cvrarray.dask.stores`    ``open_store``: a store on disk as such an array
:mod:`cvrarray.dask.arrays`    their class: ``@`` of two, and stored bytes in the repr
:mod:`cvrarray.dask.operations`  ``matmul``, ``vdot``, ``var``, ``std``: what Dask's own rules cannot do with our chunks
:mod:`cvrarray.dask.tall`      what ``linalg.gram``, ``svds`` and ``mean_var`` ask of such an array, as tasks
:mod:`cvrarray.dask.registry`  our entries in Dask's registries, and their functions
:mod:`cvrarray.dask.cluster`   our entries in distributed's and dask-cuda's registries
:mod:`cvrarray.dask.solve`     ``cg``, ``power_iteration``: one long task on each worker that holds panels
:mod:`cvrarray.dask.ranks`     what such a task does
:mod:`cvrarray.dask.vectors`   its arithmetic, NumPy's and CuPy's
:mod:`cvrarray.dask.transports`  communication between the tasks: NCCL, or the workers' connections
:mod:`cvrarray.dask.mesh`      those connections: how ranks connect, and notice who is lost
=============================  ==========================================================================

Users need not call :func:`register`: a token, an operator with a dask array, and the functions above do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.extensions import optional

if TYPE_CHECKING:  # a type checker reads these imports
    from .operations import matmul as matmul
    from .operations import std as std
    from .operations import var as var
    from .operations import vdot as vdot
    from .solve import Eigenpair as Eigenpair
    from .solve import Traffic as Traffic
    from .solve import cg as cg
    from .solve import power_iteration as power_iteration

_HOME = dict.fromkeys(("Eigenpair", "Traffic", "cg", "power_iteration"), "solve")
_HOME |= dict.fromkeys(("matmul", "std", "var", "vdot"), "operations")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'cvrarray.dask' has no attribute {name!r}")
        with optional(f"cvrarray.dask.{name}", "Dask", "dask"):
            from . import operations, solve

        return getattr({"solve": solve, "operations": operations}[_HOME[name]], name)


def __dir__() -> list[str]:
    return sorted(["register", *_HOME])


def register() -> None:
    """Register our arrays as chunks with Dask; calling it again costs nothing.

    Raises
    ------
    ModuleNotFoundError
        Dask is not installed.

    Examples
    --------
    >>> cvrarray.dask.register()
    """
    with optional("cvrarray.dask", "Dask", "dask"):
        from . import registry

    registry.register()


def dask_setup(worker: Any) -> None:
    """For ``dask worker --preload cvrarray.dask``: only needed where a worker's script imports our arrays before Dask."""
    register()


def token(array: Any) -> Any:
    """``__dask_tokenize__`` of our arrays: the same in every process, different if any byte differs."""
    from . import registry

    registry.register()
    return registry.token(array)


def apply_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A ufunc of our arrays and Dask's: Dask's result, after our arrays are registered."""
    register()
    if ufunc is np.matmul and method == "__call__" and not kwargs:
        from . import operations

        return operations.matmul(*inputs)
    return _first(inputs).__array_ufunc__(ufunc, method, *inputs, **kwargs)


def apply_function(function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A NumPy function of our arrays and Dask's: Dask's result, after our arrays are registered."""
    register()
    return _first((args, kwargs.values())).__array_function__(function, types, args, kwargs)


def _first(values: Any) -> Any:
    """The first of `values` that is Dask's, lists and tuples among them searched too; None if there is none."""
    for value in values:
        if type(value).__module__.startswith("dask."):
            return value
        if isinstance(value, (list, tuple)) and (found := _first(value)) is not None:
            return found
    return None


def register_sizeof(sizeof: Any) -> None:
    """Dask's entry point ``dask.sizeof``, called by ``import dask``: registers the size of our arrays, lazily."""

    @sizeof.register_lazy("cvrarray")  # type: ignore[untyped-decorator]
    def _register() -> None:
        from . import registry

        registry.register_sizeof(sizeof)
