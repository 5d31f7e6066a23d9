"""What both formats share: shape and dtype, the product, conversions to other libraries, the protocol hooks."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from . import _csr, _device, _protocol
from ._tables import CSR


class SparseArray:
    """A 2-D sparse array in one of the project's formats, immutable, on one device.

    A format's class adds its constructor, its own tables' names, and :meth:`check`. The tables (``_tables``) are a
    named tuple of arrays that all live on :attr:`device`.
    """

    format: ClassVar[str]  #: "cvr" or "bbcsr": also the name of the device modules
    _value_table: ClassVar[str]  #: the field of the tables that holds the stored values
    __array_priority__ = 1000.0  # before numpy.ndarray, as dask and older scipy ask

    _tables: Any
    _target: _device.Device
    _products: dict[np.dtype, Any]  # the product's dtype -> the device module's prepared product

    #: Why this format was chosen, in words, where :func:`cvrarray.asarray` chose it; else None.
    plan: str | None

    @classmethod
    def _from_tables(cls, tables: NamedTuple, plan: str | None = None):
        """An array around tables as they are. Nothing is checked: see :meth:`check`."""
        self = object.__new__(cls)
        self._adopt(tables, plan)
        return self

    def _adopt(self, tables: NamedTuple, plan: str | None = None) -> None:
        """Become the array around `tables`: what every constructor ends with."""
        self._tables = tables
        self._target = _device.of(self._values(tables))
        self._products = {}
        self.plan = plan
        for table in tables:  # immutable; and one kind of array for Numba, whether converted or mapped from a file
            if isinstance(table, np.ndarray):
                table.setflags(write=False)

    @classmethod
    def from_csr(cls, indptr: Any, indices: Any, data: Any, shape: tuple[int, int], **parameters: Any):
        """An array from the three arrays of any CSR, on their device unless ``device=`` says otherwise.

        Parameters
        ----------
        indptr : (n_rows + 1,) integers
        indices : (nnz,) integers in [0, n_cols); rows may be unsorted and hold duplicates, which are summed
        data : (nnz,) values
        shape : (n_rows, n_cols)
        **parameters
            The class's own keywords.

        Raises
        ------
        TypeError, ValueError
            An array has the wrong kind of dtype, or breaks CSR's rules; the message says where.
        """
        return cls(_csr.from_parts(indptr, indices, data, shape), **parameters)

    # ------------------------------------------------------------------------------------------------ what it is

    @classmethod
    def _values(cls, tables: Any) -> Any:
        """The array of `tables` that holds the stored values."""
        return getattr(tables, cls._value_table)

    def _parameters(self) -> dict[str, Any]:
        """The constructor's keywords that an array derived from this one should be made with."""
        raise NotImplementedError

    def _like(self, csr: CSR):
        """An array of this format, with these parameters, from a canonical CSR on any device: it stays there."""
        return type(self)(csr, **self._parameters())

    def _map(self, function: Any):
        """The array of the same structure whose stored values are ``function(values)``; 0 must become 0, for padding."""
        with self._target.use():
            return self._from_tables(self._tables._replace(**{self._value_table: function(self._values(self._tables))}))

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self._tables.shape

    @property
    def dtype(self) -> np.dtype:
        """dtype of the stored values."""
        return self._values(self._tables).dtype

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def size(self) -> int:
        """n_rows * n_cols, as NumPy counts."""
        return math.prod(self.shape)

    @property
    def nnz(self) -> int:
        """Stored entries, explicit zeros among them; padding is not counted."""
        return self._tables.nnz

    @property
    def nbytes(self) -> int:
        """Bytes of all tables on the device."""
        return sum(array.nbytes for array in self._tables if hasattr(array, "nbytes"))

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:N"``."""
        return str(self._target)

    def __repr__(self) -> str:
        text = (
            f"<{type(self).__name__} {self.shape[0]} x {self.shape[1]}, {self.dtype}, nnz={self.nnz}, "
            f"device={self.device}, {self._layout()}, {self.nbytes / 1e6:.3g} MB>"
        )
        return text if self.plan is None else f"{text[:-1]}\n  plan: {self.plan}>"

    def _layout(self) -> str:
        """The format's parameters in a few words, for the repr."""
        raise NotImplementedError

    def check(self) -> None:
        """Verify every invariant of the tables.

        Raises
        ------
        ValueError
            Names the first invariant that does not hold, as the format's page numbers them.
        """
        with self._target.use():
            for invariant, holds in self._invariants():
                if not holds:
                    raise ValueError(f"{type(self).__name__} breaks invariant {invariant}")

    def _invariants(self):
        """(invariant in words, whether it holds), in an order in which each may rely on those before it."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ the product

    def matvec(self, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
        """``alpha * (A @ x) + beta * out``, on the array's device and current stream, without synchronising.

        Parameters
        ----------
        x : (n_cols,) array on the array's device
            Any numeric dtype and stride; it is copied where it is not contiguous in the product's dtype,
            ``result_type(A.dtype, x.dtype)``. The matrix is never converted.
        out : (n_rows,) array, optional
            Where the product goes; any stride, a dtype that the product's casts to. New where left out. May be `x`.
        alpha, beta : scalar
            Must be representable in the product's dtype. With ``beta=0`` `out` is not read.

        Returns
        -------
        (n_rows,) array
            `out` where given. The same bits in every call on the same device.

        Raises
        ------
        TypeError
            `x` or `out` is on another device, or has a dtype that is not numeric; `out` or a scalar cannot hold the type.
        ValueError
            A length does not fit, or ``beta`` is not 0 without `out`.
        """
        target, xp = self._target, self._target.xp
        n_rows, n_cols = self.shape
        x = self._operand(x, "x", n_cols)
        dtype = np.result_type(self.dtype, x.dtype)
        if dtype.kind not in "biufc" or dtype.itemsize not in (1, 2, 4, 8, 16) or dtype in (np.float16, np.longdouble):
            raise TypeError(f"a product must have a dtype the array can compute in; {self.dtype} with {x.dtype} gives {dtype}")
        if out is not None:
            out = self._operand(out, "out", n_rows)
            if not np.can_cast(dtype, out.dtype, "same_kind"):
                raise TypeError(f"out must have a dtype that {dtype} casts to; got {out.dtype}")
            if not getattr(out.flags, "writeable", True):
                raise ValueError("out must be writeable; it is read-only. Pass a copy")
        # bool @ bool is counted in int64: an entry is true where the count is not 0
        work = np.dtype(np.int64) if dtype == np.bool_ else dtype
        alpha, beta = _scalar(alpha, "alpha", work), _scalar(beta, "beta", work)
        if beta != 0:
            if out is None:
                raise ValueError(f"beta = {beta} needs an array to scale: pass out=")
            if out.dtype != dtype:
                raise TypeError(f"out must have the product's dtype, {dtype}, where beta is not 0; got {out.dtype}")
        with target.use():
            x = xp.ascontiguousarray(x, dtype=work)
            direct = out is not None and out.dtype == work and out.flags.c_contiguous and not xp.may_share_memory(x, out)
            y = out if direct else xp.empty(n_rows, work)
            if not direct and beta != 0:
                y[...] = out
            if n_rows:
                self._product(work)(x, y, alpha, beta)
            if direct:
                return out
            if out is None:
                return y if work is dtype else y.astype(dtype, copy=False)
            out[...] = y.astype(dtype, copy=False)
            return out

    def _product(self, dtype: np.dtype) -> Any:
        """The device module's ``run(x, y, alpha, beta)`` for this product dtype, prepared once."""
        run = self._products.get(dtype)
        if run is None:
            run = self._products[dtype] = self._target.backend(self.format).product(self._tables, dtype)
        return run

    def _operand(self, array: Any, name: str, length: int) -> Any:
        """`array` as a 1-D array on the array's device, or a TypeError or ValueError that names the remedy."""
        target = self._target
        if type(array) is not target.xp.ndarray:
            array = self._coerced(array, name)
        if target.kind == "cuda" and array.data.device_id != target.index:
            raise TypeError(
                f"{name} must be on the array's device, {target}; got cuda:{array.data.device_id}. "
                f"Use A.to_device or cupy.asarray"
            )
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name} must be numeric; got dtype {array.dtype}")
        if array.ndim != 1:
            raise TypeError(
                f"{name} must be a vector (1-D); got shape {array.shape}. Multiply column by column, or use A.tocsr() @ {name}"
            )
        if array.size != length:
            raise ValueError(f"{name} must have length {length} for an array of shape {self.shape}; got {array.size}")
        return array

    def _coerced(self, array: Any, name: str) -> Any:
        """What is not an array of the device's module as one, where that copies nothing to or from a GPU."""
        target = self._target
        package = type(array).__module__.partition(".")[0]
        if isinstance(array, SparseArray) or package in ("scipy", "cupyx", "sparse"):
            raise TypeError(f"{name} must be a dense vector; got {type(array).__name__}. Use A.tocsr() @ {name}")
        if target.kind == "cuda":
            raise TypeError(
                f"{name} must be on the array's device, {target}; got a host {type(array).__name__}. "
                f"Use cupy.asarray({name}), or A.to_device('cpu')"
            )
        if package == "cupy":
            raise TypeError(
                f"{name} must be on the array's device, cpu; got a CuPy array. Use {name}.get(), or A.to_device('cuda')"
            )
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} must hold all its values; got a masked array. Use {name}.filled(0)")
        if name == "out" and not isinstance(array, np.ndarray):
            raise TypeError(f"out must be a NumPy array; got {type(array).__name__}")
        return np.asarray(array)

    def __matmul__(self, other: Any) -> Any:
        return self.matvec(other) if _protocol.is_ours_to_multiply(other) else NotImplemented

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return _protocol.apply_ufunc(self, ufunc, method, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return _protocol.apply_function(self, function, args, kwargs)

    def __array__(self, dtype=None, copy=None):
        raise TypeError(f"{type(self).__name__} does not become dense by itself; call todense() (and .get() on a GPU)")

    # ------------------------------------------------------------------------------------------------ the way back

    def to_device(self, device: Any):
        """The same array, table by table, on `device` (``"cpu"``, ``"cuda"``, ``"cuda:1"``); itself where it is there."""
        device = _device.parse(device)
        if device == self._target:
            return self
        tables = {name: table for name, table in self._tables._asdict().items() if hasattr(table, "nbytes")}
        if device.kind == "cuda":
            moved = {name: _device.move(table, device) for name, table in tables.items()}
        else:  # to cache lines, as the CPU's kernels want them
            empty = device.backend("memory").empty
            moved = {n: t.get(out=empty(t.size, t.dtype).reshape(t.shape)) for n, t in tables.items()}
        return self._from_tables(self._tables._replace(**moved), self.plan)

    def __reduce__(self):
        return type(self)._from_tables, (self._tables, self.plan)

    def _canonical_csr(self) -> CSR:
        """Canonical CSR on the array's device."""
        with self._target.use():
            row, col, val = self._target.backend(self.format).to_coo(self._tables)
            return self._target.backend("csr").canonical(row, col, val, self.shape)

    def tocsr(self) -> Any:
        """A ``scipy.sparse.csr_array``, or on a GPU a ``cupyx.scipy.sparse.csr_matrix``, with every stored entry.

        Raises
        ------
        TypeError, ValueError
            On a GPU: CuPy's sparse matrices hold no integers, and fewer than 2^31 nonzeros; see :meth:`to_scipy`.
        """
        if self._target.kind == "cpu":
            return self.to_scipy()
        if self.dtype.kind in "iu":
            raise TypeError(f"cupyx.scipy.sparse holds no {self.dtype} values. Use to_scipy(), or astype on the input")
        if self.nnz >= 2**31 or max(self.shape) >= 2**31:
            raise ValueError(f"cupyx.scipy.sparse holds fewer than 2^31 nonzeros; this array has {self.nnz}. Use to_scipy()")
        from cupyx.scipy.sparse import csr_matrix

        with self._target.use():
            indptr, indices, data, shape = self._canonical_csr()
            return csr_matrix((data, indices, indptr.astype(indices.dtype, copy=False)), shape=shape)

    def to_scipy(self) -> Any:
        """A ``scipy.sparse.csr_array`` in host memory, with every stored entry."""
        from scipy.sparse import csr_array

        indptr, indices, data, shape = _csr.move(self._canonical_csr(), _device.CPU)
        return csr_array((data, indices, indptr), shape=shape)

    def tocoo(self) -> Any:
        """A pydata ``sparse.COO`` in host memory, with every stored entry."""
        import sparse

        coo = self.to_scipy().tocoo()
        return sparse.COO(np.stack(coo.coords), coo.data, shape=self.shape, has_duplicates=False, sorted=True)

    def todense(self) -> Any:
        """A dense (n_rows, n_cols) array on the array's device."""
        with self._target.use():
            row, col, val = self._target.backend(self.format).to_coo(self._tables)
            dense = self._target.xp.zeros(self.shape, self.dtype)
            dense[row, col] = val
            return dense


def _scalar(value: Any, name: str, dtype: np.dtype) -> Any:
    """`value` as a scalar of `dtype`; TypeError where that would lose its imaginary part, its fraction or its size."""
    if type(value) in (int, float) and value in (0, 1):  # what nearly every call passes
        return dtype.type(value)
    if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biufc":
        try:
            with np.errstate(over="ignore"):
                converted = dtype.type(value) if dtype.kind == "c" or not np.iscomplexobj(value) else None
        except (OverflowError, ValueError):
            converted = None
        if converted is not None:
            kept_size = np.isfinite(converted) or not np.isfinite(value)
            if kept_size if dtype.kind in "fc" else converted == value:
                return converted
    raise TypeError(f"{name} must be a scalar that the product's dtype, {dtype}, can hold; got {value!r}")
