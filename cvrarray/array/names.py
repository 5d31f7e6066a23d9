"""Names that arrays of other libraries have and ours cannot have: asking for one raises an error that names the way."""

from __future__ import annotations

import numpy as np

_IMMUTABLE = "Arrays of ours are immutable"
_DENSE = "Use A.todense()"

#: Name -> the way, of what SciPy's, CuPy's, pydata's or NumPy's arrays have and ours cannot have.
WAYS = {
    "indices": "Use A.tocsr().indices",
    "indptr": "Use A.tocsr().indptr",
    "coords": "Use A.nonzero(), or A.tocoo().coords",
    "row": "Use A.nonzero(), or A.tocoo().coords",
    "col": "Use A.nonzero(), or A.tocoo().coords",
    "offsets": "Use A.asformat('dia').offsets",
    "blocksize": "Use A.block_size of a BBCSRArray, or A.tobsr().blocksize",
    "sort_indices": "A.tocsr() is always sorted",
    "has_sorted_indices": "A.tocsr() is always sorted",
    "sum_duplicates": "An array has no duplicates: they are summed when it is made",
    "setdiag": f"{_IMMUTABLE}. Use setdiag on A.tocsr(), and convert it",
    "resize": f"{_IMMUTABLE}. Use A[:m, :n] or numpy.pad, or resize on A.tocsr()",
    "check_format": "Use A.check()",
    "getrow": "Use A[[i]], or A[i] for a dense vector",
    "getcol": "Use A[:, [j]], or A[:, j] for a dense vector",
    "getnnz": "Use A.nnz, or A.count_nonzero(axis)",
    "getformat": "Use A.format",
    "getH": "Use A.H",
    **{name: f"Use numpy.{name}(A, axis)" for name in ("nansum", "nanmean")},
    "take": "Use numpy.take(A, indices, axis)",
    "tensordot": "Use numpy.tensordot(A, x, axes)",
    "tocupy": "Use A.to_device('cuda')",
    "get": "Use A.to_device('cpu')",
    "set": f"{_IMMUTABLE}. Use A.with_values(data)",
    "ravel": "An array of ours has 2 dimensions. Use A.flatten(), which is dense, or give SciPy's functions A.tocsr()",
    "A": _DENSE,
    "amax": "Use A.max(axis)",
    "amin": "Use A.min(axis)",
    "reduce": "Use A.sum(axis), A.max(axis), A.any(axis), ..., or numpy.add.reduce(A, axis)",
    "rows": "Use A.tolil().rows",
    "flat": "Use A.data, or A.flatten(), which is dense",
    "tolist": "Use A.todense().tolist()",
    "item": "Use A[i, j].item()",
    "fill": f"{_IMMUTABLE}. Use A.with_values(data)",
    "itemsize": "Use A.dtype.itemsize",
    "view": "Use A.astype(dtype), or A.with_values(A.data.view(dtype))",
    "cumsum": f"The result would be dense. {_DENSE}",
    "cumprod": f"The result would be dense. {_DENSE}",
    "sort": f"{_IMMUTABLE}. {_DENSE}",
    "argsort": _DENSE,
    "ptp": "Use A.max(axis) - A.min(axis)",
    "repeat": "Use numpy.repeat(A, repeats, axis)",
    "compress": "Use A[mask], or numpy.compress(mask, A, axis)",
    "broadcast_to": "Use numpy.broadcast_to(A, shape)",
    **dict.fromkeys(
        ("items", "keys", "values", "update", "pop", "popitem", "setdefault", "clear", "fromkeys"), "Use A.todok()"
    ),
    **dict.fromkeys(("from_numpy", "from_scipy_sparse", "from_coo", "from_iter"), "Use cvrarray.asarray, or the class"),
}


def missing(cls: str, name: str) -> str:
    """What the AttributeError of an array of this class says."""
    way = f". {WAYS[name]}" if name in WAYS else ""
    if isinstance(getattr(np, name, None), np.ufunc):
        way = f". Use numpy.{name}(A)"
    return f"{cls!r} object has no attribute {name!r}{way}"
