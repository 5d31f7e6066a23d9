"""Products of dense matrices at an array's stored places: :func:`sddmm`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import extensions
from ..input import coercion
from . import products
from .transposed import TransposedArray
from .values import entries_of, places


def sddmm(A: Any, X: Any, Y: Any, out: Any = None, *, values: Any = True) -> Any:
    """``A * (X @ Y.T)`` at the stored places of A alone (sampled dense-dense matrix product): no dense matrix is made.

    Parameters
    ----------
    A : (n_rows, n_cols) array of ours
    X : (n_rows, k) or (n_rows,) array or tensor on A's device
    Y : (n_cols, k) or (n_cols,) array or tensor on A's device
        Nothing is conjugated: pass ``Y.conj()`` for ``X @ Y.conj().T``.
    out : array of ours, optional
        Its values are replaced: it has A's structure and a dtype that holds the result. It may be A. Not for tensors.
    values : bool
        Whether the products are multiplied by A's values, as in DGL's ``sddmm``; False leaves them as they are, as in
        PyTorch's ``sampled_addmm`` with ``beta=0``. For tensors also what `values` of :func:`cvrarray.torch.sddmm` is.

    Returns
    -------
    array of A's class and structure
        `out` where given; explicit zeros of A are entries too. Its dtype is that of NumPy's ``A * (X @ Y.T)``, or of
        ``X @ Y.T``. Of tensors an (nnz,) tensor instead, in the order of ``A.data``, with gradients: see
        :func:`cvrarray.torch.sddmm`.

    Raises
    ------
    TypeError
        X or Y is no dense numeric array on A's device; `out` has another class, device or kind of dtype.
    ValueError
        Shapes do not fit, or `out` has another structure.

    Notes
    -----
    The sums over k are added in an order that k alone fixes, with the dtype and the device: in the result's dtype, of
    float16 in float32. A keeps the rows and columns of its places, 8 bytes each, for the next call and for all arrays
    of its structure. DGL and CUDA call the operation SDDMM: I. Nisa et al., "Sampled Dense Matrix Multiplication for
    High-Performance Machine Learning", HiPC 2018.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
    >>> X, Y = np.array([[1.0, 1], [2, 0]]), np.array([[1.0, 2], [3, 4], [5, 6]])
    >>> cvrarray.sddmm(A, X, Y).todense()
    array([[ 3.,  0., 22.],
           [ 0., 18.,  0.]])
    >>> cvrarray.sddmm(A, X, Y, values=False).data
    array([ 3., 11.,  6.])
    """
    if not coercion.is_ours(A) or not hasattr(A, "_target"):
        raise TypeError(f"A must be an array of ours; got {type(A).__name__}. Use cvrarray.asarray, or A.compute() of Dask's")
    if coercion.is_tensor(X) or coercion.is_tensor(Y):
        if out is not None:
            raise TypeError("out must be left out of a product of tensors: its result is a tensor")
        return extensions.load("torch").sddmm(A, X, Y, values)
    if not isinstance(values, (bool, np.bool_)):
        raise TypeError(f"values must be True or False; got {type(values).__name__}. Use sddmm(A.with_values(values), ...)")
    left, right = (_factor(A, x, name, n) for x, name, n in ((X, "X", A.shape[0]), (Y, "Y", A.shape[1])))
    if left.shape[1:] != right.shape[1:]:
        raise ValueError(f"X and Y must have as many columns; got shapes {np.shape(X)} and {np.shape(Y)}")
    if isinstance(A, TransposedArray):  # whose entries are the base's, in another order
        if not isinstance(out, TransposedArray | None):
            raise TypeError(f"out must be a transposed view, as A is; got {type(out).__name__}. Use out.T")
        made = sddmm(A.base, right, left, None if out is None else out.T, values=values)
        return made.T if out is None else out
    dtype = np.result_type(left.dtype, right.dtype, *([A.dtype] if values else []))
    with A._target.use(), np.errstate(all="ignore"):
        data = at_places(A, left, right, dtype)
        if values:
            data *= entries_of(A).astype(data.dtype, copy=False)
        data = data.astype(dtype, copy=False)
    return A.with_values(data, out=out)


def at_places(A: Any, left: Any, right: Any, dtype: np.dtype, out: Any = None) -> Any:
    """(nnz,) the sums for each entry of A, in a dtype that sums of `dtype` are made in, or in `out`. Left and right are
    2-D.
    """
    target = A._target
    # integers wrap in 64 bits as they do in fewer
    wide = np.dtype(np.int64) if dtype.kind in "biu" else np.result_type(dtype, np.float32)
    row, col = places(A)
    sums = target.xp.empty(A.nnz, wide) if out is None or out.dtype != wide else out
    target.backend("sampled").products(row, col, *(target.xp.ascontiguousarray(x, wide) for x in (left, right)), sums)
    if out is None or sums is out:
        return sums
    out[...] = sums
    return out


def _factor(A: Any, x: Any, name: str, n: int) -> Any:
    """X or Y as (n, k) on A's device."""
    if type(x).__module__.startswith("dask."):
        raise TypeError(f"{name} must be in memory; got an array of Dask's. Use {name}.compute()")
    x = products.operand(A, x, name)
    coercion.check_dtype(x.dtype)
    if x.ndim not in (1, 2) or x.shape[0] != n:
        raise ValueError(f"{name} must have shape ({n},) or ({n}, k) for this A, of shape {A.shape}; got {x.shape}")
    return x[:, None] if x.ndim == 1 else x
