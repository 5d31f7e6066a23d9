"""Stacks: arrays that share one structure and differ in their values alone, multiplied and solved side by side.

A stack has the structure of an array once, and for each element a value table in the order of the format, one after the
other in one block of memory. So a conversion serves all elements, and so does each column that a product reads.

The terms of a row are added in the order of the element's own product: on a GPU BBCSR has kernels for all elements of a
stack at once, which keep to it; everywhere else the element's own product runs, one element after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..core import devices, extensions
from ..core.tables import Sources
from ..input import coercion
from . import encoding, products, values

#: From one element's value table to the next are a multiple of so many numbers: each begins at a cache line.
ALIGNED = 64

_DENSE = "Use S.todense(), or S[i] for an array of two dimensions"
#: Names that sparse arrays have and a stack has not, and the way.
_WAYS = {"tocsr": "Use S[i].tocsr()", "format": "Use S[i].format", "H": "Use S.T of real arrays", "sum": _DENSE}


class Stack:
    """Arrays of one structure: ``A.stack(V)``, or ``Assembly.stack``. Its :attr:`shape` is (batch, n_rows, n_cols).

    It multiplies (``S @ x``), has transposes (``S.T``) and elements (``S[i]``, ``S[i:j]``), and :func:`cvrarray.linalg.cg`
    solves with all of it. It has no arithmetic, no axes to sum over and no files: those are the elements'.

    Notes
    -----
    Element i of a product has the bits of ``A.with_values(V[i]) @ x``, whatever the other elements are; with matrices on a GPU
    where both begin alike in memory, as :meth:`cvrarray.CVRArray.matmat` says. A stack is immutable.

    Memory: a value table for each element, and the structure once. On a GPU products of vectors with BBCSR are one launch for
    all elements; so are those with a small CVR whose rows are short and of about one length, by a copy of the values. Else,
    on a CPU, and with matrices, the elements' own products run in turn.

    Examples
    --------
    >>> A = cvrarray.BBCSRArray([[2.0, 1, 0], [0, 3, 0]], block_size=1)
    >>> S = A.stack(np.array([[2.0, 1, 3], [4.0, 2, 6]]))
    >>> S
    <Stack of 2 BBCSRArray 2 x 3, 3 nonzeros each, float64, cpu>
    >>> S @ np.ones(3)
    array([[3., 3.],
           [6., 6.]])
    >>> S.T @ np.array([[1.0, 0], [0, 1]])
    array([[2., 1., 0.],
           [0., 6., 0.]])
    >>> S[1].todense()
    array([[4., 2., 0.],
           [0., 6., 0.]])
    """

    __array_ufunc__ = None  # numpy.ndarray leaves operators to this class
    __array_priority__ = 1000.0
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, like: Any, tables: Any) -> None:
        """`tables` (batch, apart): value tables of the structure of `like`, which :func:`stacked` makes."""
        self._tables, self._target = tables, like._target
        self._n_slots = like._n_slots(like._tables)
        with self._target.use():
            self._like = like._with_table(tables[0, : self._n_slots])
        self._base: Stack | None = None  # whose transposes these are
        self._transposed: Stack | None = None  # which knows no base: in a cycle memory would wait for the garbage collector
        self.of_tensor: Any = None  # the array and the tensor that it was made of, and whether it is that stack's transposes
        self._elements: list[Any] = []
        self._products: dict[tuple[str, np.dtype], Callable[[Any, Any], None]] = {}

    def __getattr__(self, name: str) -> Any:
        if name in _WAYS or (not name.startswith("_") and hasattr(type(self.__dict__.get("_like")), name)):
            raise AttributeError(
                f"a Stack has no {name!r}. {_WAYS.get(name, 'Its elements have: use S[i]')}", name=name, obj=self
            )
        raise AttributeError(f"'Stack' object has no attribute {name!r}", name=name, obj=self)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, n_rows, n_cols)."""
        return (len(self._tables), *self._like.shape)

    ndim = 3

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        dtype: np.dtype = self._tables.dtype
        return dtype

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:N"``."""
        return str(self._target)

    @property
    def nnz(self) -> int:
        """Stored entries of all elements."""
        return len(self) * int(self._like.nnz)

    @property
    def nbytes(self) -> int:
        """Bytes of the structure and of all value tables."""
        like = self._like
        return int(like.nbytes - like._values(like._tables).nbytes + self._tables.nbytes)

    @property
    def data(self) -> Any:
        """(batch, nnz of an element) values, each row in the order of ``S[i].data``: a copy."""
        with self._target.use():
            return self._tables[:, encoding.slots(self._like)]

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        like, (n_rows, n_cols) = self._like, self._like.shape
        of = f"{type(like).__name__} {n_rows} x {n_cols}, {like.nnz} nonzeros each"
        return f"<Stack of {len(self)} {of}, {self.dtype}, {self.device}>"

    def __getitem__(self, key: Any) -> Any:
        """``S[i]``: the element as an array, with values of its own. ``S[i:j]``: a stack of these elements.

        Where S was made of a tensor, products of ``S[i:j]`` have its gradients; ``S[i]`` knows nothing of it.
        """
        with self._target.use():
            if isinstance(key, slice):
                tables = self._tables[key]
                if not len(tables):
                    raise ValueError(f"a slice must leave an element of {len(self)}; got {key}")
                made = _of(self._like, tables)
                if self.of_tensor is not None:
                    (A, V), transposed = self.of_tensor
                    made.of_tensor = (A, V[list(range(len(self))[key])]), transposed
                return made
            try:
                i = operator.index(key)
            except TypeError:
                raise TypeError(f"a Stack takes a number or a slice of elements; got {key!r}. Use S[i][rows, cols]") from None
            if not -len(self) <= i < len(self):
                raise IndexError(f"element {i} is out of range for a Stack of {len(self)}")
            return self._like._with_table(encoding.copied(self._tables[i, : self._n_slots], self._target))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def to_device(self, device: Any) -> Stack:
        """The stack on another device, or itself where it is there."""
        device = devices.parse(device)
        if device == self._target:
            return self
        made = _of(self._like.to_device(device), self._tables)
        if self.of_tensor is not None:
            (A, V), transposed = self.of_tensor
            made.of_tensor = (A.to_device(device), V.to(str(device))), transposed
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _of, (self._like, self._tables)

    def __bool__(self) -> bool:
        raise ValueError("the truth of a Stack is that of many entries. Use len(S), or S[i].any()")

    def todense(self) -> Any:
        """(batch, n_rows, n_cols) dense array on the stack's device."""
        with self._target.use():
            return self._target.xp.stack([element.todense() for element in self])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(f"a Stack of shape {self.shape} is not made dense unasked. {_DENSE}")

    # ----------------------------------------------------------------------------------------------------- the products

    @property
    def T(self) -> Stack:
        """The stack of the transposes: tables of its own, made once and kept. ``S.T.T is S``.

        Element i of a product with it has the bits of ``A.with_values(V[i]).T @ x`` where there is room for these tables too.

        Raises
        ------
        MemoryError
            ``CVRARRAY_TRANSPOSED_MEMORY`` has no room for tables of the transpose.
        """
        found = self._base
        if found is None:
            if self._transposed is None:
                self._transposed = self._made_transposed()
            found = object.__new__(Stack)
            found.__dict__.update(self._transposed.__dict__, _base=self)
        if self.of_tensor is not None:
            found.of_tensor = self.of_tensor[0], not self.of_tensor[1]
        return found

    mT = T

    def _made_transposed(self) -> Stack:
        own = self._like.T._made()
        if own is None:
            raise MemoryError(
                "no room for tables of the transposes of a Stack. Raise CVRARRAY_TRANSPOSED_MEMORY, or use S[i].T"
            )
        with self._target.use():
            own = encoding.decompressed(own)
            return stacked(own, values.sources_of_transpose(self._like, own), self._tables[:, : self._n_slots])

    def __matmul__(self, x: Any) -> Any:
        """Element by element: x (n_cols,) is multiplied by all, (batch, n_cols) and (batch, n_cols, k) by one each.

        Returns
        -------
        (batch, n_rows), or (batch, n_rows, k), of dtype ``result_type(S.dtype, x.dtype)``
            A new array. The same bits in every call.

        Raises
        ------
        TypeError
            x is on another device, or is sparse or not numeric.
        ValueError
            The shape of x is none of these.
        """
        if type(x).__module__.partition(".")[0] == "torch":
            return extensions.load("torch").multiply_stack(self, x)
        return self.multiply(x)

    def __rmatmul__(self, x: Any) -> Any:
        raise TypeError(f"a Stack multiplies from the left; got {type(x).__name__} @ Stack. Use S.T @ x")

    def multiply(self, x: Any, out: Any = None) -> Any:
        """``S @ x``, into `out` where that is given: C order, of the product's shape and dtype, with no memory of x's.

        Raises
        ------
        TypeError, ValueError
            As ``S @ x``; `out` is something else.
        """
        target, (batch, n_rows, n_cols) = self._target, self.shape
        x = products.operand(self, x, "x")
        if x.shape not in ((n_cols,), (batch, n_cols)) and (x.ndim != 3 or x.shape[:2] != (batch, n_cols)):
            shapes = f"({n_cols},), ({batch}, {n_cols}) or ({batch}, {n_cols}, k)"
            raise ValueError(f"x must have shape {shapes} for a Stack of shape {self.shape}; got {x.shape}")
        dtype, work = products.product_dtype(self.dtype, x.dtype)
        shape = (batch, n_rows, *x.shape[2:])
        with target.use():
            if out is not None:
                _check_out(target, out, shape, work, x)
            y = target.xp.empty(shape, work) if out is None else out
            if y.size:
                self._prepared("product" if x.ndim < 3 else "product_matrix", work)(products.cast(target, x, work), y)
            return y if work == dtype or out is not None else coercion.narrowed(y, dtype)

    def _prepared(self, kind: str, dtype: np.dtype) -> Callable[[Any, Any], None]:
        """``run(x, y)`` for contiguous operands of `dtype`."""
        run = self._products.get((kind, dtype))
        if run is None:
            at_once = getattr(self._like._module(self._target), f"{kind}_stack", None)
            run = at_once(self._like._tables, self._tables, dtype) if at_once else None
            run = self._products[kind, dtype] = run or self._in_turn(kind, dtype)
        return run

    def _in_turn(self, kind: str, dtype: np.dtype) -> Callable[[Any, Any], None]:
        """The same by the products of the elements, one after the other."""
        own = [element._kernel(kind, dtype) for element in self.elements()]
        one, zero = dtype.type(1), dtype.type(0)

        def run(x: Any, y: Any) -> None:
            for i, multiply in enumerate(own):
                multiply(x if x.ndim == 1 else x[i], y[i], one, zero)

        return run

    def elements(self) -> list[Any]:
        """The elements as arrays that share the stack's memory: nobody must write to them."""
        if not self._elements:
            with self._target.use():
                self._elements[:] = [self._like._with_table(table[: self._n_slots]) for table in self._tables]
        return self._elements


def _check_out(target: Any, out: Any, shape: tuple[int, ...], dtype: np.dtype, x: Any) -> None:
    if not isinstance(out, target.xp.ndarray) or devices.of(out) != target:
        raise TypeError(f"out must be a {target.xp.__name__}.ndarray on the stack's device, {target}; got {type(out).__name__}")
    if (out.shape, out.dtype) != (shape, dtype) or not out.flags.c_contiguous or not getattr(out.flags, "writeable", True):
        wanted = f"contiguous and writeable, of shape {shape} and dtype {dtype}"
        raise ValueError(f"out must be {wanted}; got {out.shape} and {out.dtype}, with strides {out.strides}")
    devices.check_aligned(out, "out")
    if target.may_share_memory(x, out):
        raise ValueError("out must not share memory with x, which is read to the end. Pass another array")


def _of(like: Any, tables: Any) -> Stack:
    """A stack of the structure of `like`, on its device, with copies of these value tables."""
    return Stack(like, encoding.copied(tables.reshape(-1), like._target).reshape(tables.shape))


def stack(array: Any, V: Any) -> Stack:
    """The arrays ``array.with_values(V[i])``: see :meth:`cvrarray.array.base.SparseArray.stack`."""
    base = values.base_of(array)
    if type(V).__module__.partition(".")[0] == "torch":
        return extensions.load("torch").stack(array, V)  # type: ignore[no-any-return]
    with base._target.use():
        V = checked(array, V, "V", (array.nnz,), "a value for each stored entry, in the order of A.data")
        sources = values.sources_of_view(base) if base is not array else None
        made = stacked(base, sources, V)
    return made if base is array else made.T


def checked(array: Any, V: Any, name: str, shape: tuple[int, ...], of: str) -> Any:
    """V as a numeric array (batch, *shape) on the array's device, batch at least 1."""
    V = products.operand(array, V, name)
    if V.ndim != 1 + len(shape) or V.shape[1:] != shape:
        wanted = ", ".join(map(str, ("batch", *shape)))
        raise ValueError(f"{name} must have shape ({wanted}), {of}; got {V.shape}")
    if not len(V):
        raise ValueError(f"{name} must have an element; got shape {V.shape}, a batch of 0")
    return V


def stacked(like: Any, sources: Sources | None, V: Any) -> Stack:
    """A stack of the structure of `like` on the current device, of values (batch, n) in the order that `sources` tell of; None:
    that of the canonical CSR.
    """
    target, xp = like._target, like._target.xp
    like = encoding.decompressed(like)
    dtype, n_slots = coercion.check_dtype(V.dtype), like._n_slots(like._tables)
    apart = max(1, -(-n_slots // ALIGNED)) * ALIGNED
    tables = encoding.uninitialised(len(V) * apart, dtype, target).reshape(len(V), apart)
    if sources is None and target.kind == "cuda":  # one launch for all
        tables[...] = 0
        if V.size:
            tables[:, encoding.slots(like)] = V
    else:
        for row, table in zip(V, tables, strict=True):
            values.fill(like, sources, xp.ascontiguousarray(row, dtype=dtype), table[:n_slots])
    return Stack(like, tables)
