"""An array that holds its matrix itself, as the tables of one format on one device: what CVR and BBCSR share."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self
from weakref import WeakValueDictionary

import numpy as np

from ..core import devices, extensions
from ..core.arrays import Run
from ..core.distinct import described, pads_with_zero
from ..core.tables import CSR
from ..input import coercion, limits
from . import encoding, serialized
from .base import SparseArray
from .kept import PART, Kept
from .transposed import TransposedArray, by_panels, keep
from .values import Structure, same_tables

#: Number -> array, while it lives: operators of PyTorch take numbers, not arrays. Code that ``torch.compile`` has
#: compiled may be the first to meet an array, and only reads its number: so every array is entered.
LIVING: WeakValueDictionary[int, FormatArray] = WeakValueDictionary()
_NUMBERS = itertools.count(1)
_WRITES = itertools.count(1)  # a number for each write of values, of whichever array

#: Every format that is known, by name, in the order in which they are compared.
FORMATS: dict[str, type[FormatArray]] = {}


class Sample(NamedTuple):
    """Rows of a matrix that stand for all of it: what a format needs to say how large its tables would be."""

    windows: Any  # evenly spaced rows, and what is counted in them: Windows of the device's module ``statistics``
    shape: tuple[int, int]  # of the whole matrix, as all that follows
    nnz: int
    value_bytes: int
    index_bytes: int
    padded: int  # slots where each bin of 32 rows is as wide as its longest row
    scale: float  # nonzeros of the matrix over those of the window
    column_bytes: float  # bytes that a column takes on average, in tiles that store 16-bit offsets where they can
    exact: bool  # whether sizes that cannot win are wanted too


class Pending(NamedTuple):
    """What an operation leaves of its result: an array on the CPU whose tables have not been asked for yet."""

    csr: CSR  # nobody writes to its arrays, which others may have too
    keywords: dict[str, Any]  # of the constructor, which makes the tables


class _OnDemand:
    """The tables of an array that is :class:`Pending`; those of all others stand in the array itself, before this.

    ``functools.cached_property`` of Python 3.11 has a lock for all arrays, which a forked child could find closed.
    """

    def __get__(self, array: Any, owner: Any = None) -> Any:
        return self if array is None else array._made_tables()


class FormatArray(SparseArray):
    """A sparse array whose tables (``_tables``, a named tuple of arrays) all live on :attr:`device`.

    A format is a subclass. Defining it makes it known to ``asarray(format=...)``, files, stores, Dask and the command
    line. It says

    - ``format``, its name, which is also that of its two modules of kernels, ``cvrarray.cpu.<name>`` and
      ``cvrarray.gpu.<name>``, or ``_modules`` where these lie elsewhere;
    - ``_table_type``, ``_value_table``, ``_stored``: its tables and how they lie in files;
    - ``_invariants``: what :meth:`check` verifies; ``_layout`` and ``_parameters`` for the repr and derived arrays;
    - ``_variants``, ``_microseconds``, ``_why``, where ``asarray(format="auto")`` shall consider it.

    A module of kernels has ``convert(csr, **keywords) -> tables``, ``product(tables, dtype) -> run`` and
    ``to_csr(tables, first, last)``, the canonical CSR of the rows [first, last). Optional are
    ``product_matrix``, ``product_transposed``, ``diagonal(tables, offset)``, and ``fill(tables, order, data, values)``,
    which writes a value table: with it goes the method ``_order``. On a CPU also ``row_sums(tables, dtype)``, which
    gives a ``run(y)`` or None.
    """

    format: ClassVar[str]
    #: kind of device -> module of kernels, of a format outside this package
    _modules: ClassVar[dict[str, ModuleType]] = {}
    _table_type: ClassVar[type[Any]]  #: the named tuple; its first fields are ``shape`` and ``nnz``
    _value_table: ClassVar[str]  #: the field of the tables that holds the stored values
    #: The tables that are arrays, in a file's order: dtype ("index", "value" and "mask" depend on the matrix) and
    #: dimensions.
    _stored: ClassVar[dict[str, tuple[str, int]]]
    _tuned: ClassVar[str] = ""  #: the constructor's keyword that :func:`cvrarray.tune` varies

    _tables: Any = _OnDemand()
    _shape: tuple[int, int]  # these three are known before there are tables
    _dtype: np.dtype
    _nnz: int
    _pending: Pending | None = None  # what the tables are to be made of, until they are asked for
    _kept: Kept  # its canonical CSR, where that is kept beside the tables
    _kernels: dict[tuple[str, np.dtype], Run]  # kind and the product's dtype -> the device module's prepared product
    _number: int  # of this array alone: what an operator of PyTorch takes in its place
    #: Number of the last write of its values, None while they are replaced. What is computed from values is kept with the
    #: number that was read before, and used only while that is the number still.
    _version: int | None
    _place_cache: tuple[Any, Any] | None = None  # rows and columns of the canonical CSR, once asked for
    _structure: Structure  # what arrays know together that differ in their values alone
    _transpose: Any  # an array that is the transpose, once a product needed it; False where there shall be none
    _transpose_version: int | None  # that of the values in it, None where it must get them before its next product
    _is_written_by_graphs: bool  # whether CUDA graphs replace values, without that anyone is told
    _has_graphs_of_transpose: bool  # whether CUDA graphs multiply by its transpose

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "format" in cls.__dict__:
            FORMATS[cls.format] = cls

    def __init__(
        self,
        obj: Any,
        *,
        shape: Any = None,
        dtype: Any = None,
        copy: Any = None,
        device: Any = None,
        values: Any = "auto",
        **keywords: Any,
    ):
        target = None if device is None else devices.parse(device)
        encodes = encoding.checked(values) and "distinct" in self._stored
        csr = coercion.from_arguments(obj, shape, dtype, self._wants(**keywords))
        target = target or devices.of(csr.data)
        with target.use():
            try:
                self._adopt(self._convert(coercion.move(csr, target), target, encodes, **keywords))
                target.wait()
            except MemoryError as error:
                raise limits.named(error, csr.shape) from error

    @classmethod
    def _convert(cls, csr: CSR, target: devices.Device, encodes: bool, **keywords: Any) -> Any:
        """The tables of a canonical CSR on `target`, the current device; values in few bytes where `encodes`, if that
        pays.
        """
        keywords = cls._for_conversion(csr, target, **keywords)
        data, distinct = encoding.encode(csr.data, target, csr.seen.sample) if encodes else (csr.data, None)
        tables = cls._module(target).convert(csr._replace(data=data), **keywords)
        if not encoding.pays(cls, tables, distinct, target):  # which is known only now
            return cls._module(target).convert(csr, **keywords)
        return encoding.with_values(cls, tables, cls._values(tables), distinct)

    @classmethod
    def _wants(cls, **keywords: Any) -> coercion.Wants | None:
        """What a conversion with the constructor's keywords will want to know of a CSR, if a GPU checks it."""
        return None

    @classmethod
    def _for_conversion(cls, csr: CSR, target: devices.Device, **keywords: Any) -> dict[str, Any]:
        """What the module's ``convert`` takes, for the constructor's keywords and a canonical CSR on `target`."""
        return keywords

    @classmethod
    def _module(cls, target: devices.Device) -> ModuleType:
        """The format's kernels on a device."""
        return cls._modules.get(target.kind) or target.backend(cls.format)

    @classmethod
    def _from_tables(cls, tables: Any, plan: str | None = None) -> Self:
        """An array around tables as they are. Nothing is checked: see :meth:`check`."""
        self = object.__new__(cls)
        self._adopt(tables, plan)
        return self

    def _adopt(self, tables: NamedTuple, plan: str | None = None) -> None:
        """Become the array around `tables`: what every constructor ends with."""
        self._tables = tables
        self._open(devices.of(self._values(tables)), tables, encoding.dtype_of(type(self), tables), plan)
        _protect(tables)

    def _open(self, target: devices.Device, matrix: Any, dtype: np.dtype, plan: str | None = None) -> None:
        """Become an array on `target` that knows nothing but its matrix: `matrix` are its tables, or its CSR."""
        self._target, self._plan = target, plan
        self._shape, self._nnz, self._dtype = matrix.shape, int(matrix.nnz), dtype
        self._dense_type = target.xp.ndarray
        self._kernels, self._ready, self._ready_transposed = {}, {}, {}
        self._structure, self._version = Structure(), 0
        self._transpose, self._transpose_version = None, 0
        self._kept, self._of_graphs = Kept(), []
        self._is_written_by_graphs, self._has_graphs_of_transpose = target.is_capturing(), False
        self._number = next(_NUMBERS)
        LIVING[self._number] = self

    @classmethod
    def _from_pending(cls, csr: CSR, keywords: dict[str, Any]) -> Self:
        """The array whose tables will be made of these when they are asked for: see :class:`Pending`."""
        self = object.__new__(cls)
        self._pending = Pending(csr, keywords)
        self._open(devices.CPU, csr, csr.data.dtype)
        return self

    def _made_tables(self) -> Any:
        """The tables, made now."""
        pending = self._pending
        if pending is not None:
            made = type(self)(pending.csr, **pending.keywords)._tables
            self.__dict__.setdefault("_tables", made)  # two threads may get here: the first one's tables count
            self._pending = None
        return self.__dict__["_tables"]

    @classmethod
    def from_csr(cls, indptr: Any, indices: Any, data: Any, shape: tuple[int, int], **parameters: Any) -> Self:
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

        Examples
        --------
        >>> A = cvrarray.CVRArray.from_csr([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
        >>> A.todense()
        array([[1., 0., 2.],
               [0., 3., 0.]])
        """
        return cls(coercion.Parts(indptr, indices, data, coercion.check_shape(shape)), **parameters)

    @classmethod
    def _values(cls, tables: Any) -> Any:
        """The array of `tables` that holds the stored values."""
        return getattr(tables, cls._value_table)

    @classmethod
    def _n_slots(cls, tables: Any) -> int:
        """Values that a value table has where it stores them as they are, or so many at least."""
        return int(cls._values(tables).size)

    def _parameters(self) -> dict[str, Any]:
        """The constructor's keywords that an array derived from this one should be made with."""
        return {}

    @classmethod
    def _defaults(cls, csr: CSR) -> dict[str, Any]:
        """The constructor's keywords that a conversion of `csr` would choose itself, where they depend on the values'
        dtype.
        """
        return {}

    def _layout(self) -> str:
        return f"{len(self._arrays())} tables"

    def _described(self) -> str:
        return self._layout() if self._pending is None else "still CSR, to be converted by the first product"

    @classmethod
    def _variants(cls, sample: Sample, smallest: float) -> dict[str, tuple[int, float]]:
        """What ``asarray(format="auto")`` may choose: name -> bytes of the tables, and stored slots over nonzeros.

        A name is the format's, followed by a number where there are several. Unless ``sample.exact``, those that take
        more bytes than `smallest`, another format's, may be left out.
        """
        return {}

    @classmethod
    def _variant_keywords(cls, number: str) -> dict[str, Any]:
        """The constructor's keywords of the variant that is called by the format's name and `number`."""
        return {}

    @classmethod
    def _microseconds(cls, name: str, stats: Any, device: str, streaming: float, entry: int = 0) -> float:
        """Time of a product of a variant on a kind of device, where streaming its tables takes `streaming` microseconds; with a
        vector whose entries have so many bytes, 0: those of the matrix's.
        """
        raise NotImplementedError

    @classmethod
    def _microseconds_of_matrix(cls, name: str, stats: Any, device: str, of_vector: float, columns: int) -> float:
        """The same with a matrix X of so many columns, where that with a vector takes `of_vector`. Default: one by one."""
        return of_vector * columns

    @classmethod
    def _for_columns(cls, csr: CSR, columns: int) -> dict[str, Any]:
        """The constructor's keywords for products of `csr` with so many columns, but for those of the variant."""
        return {}

    @classmethod
    def _why(cls, name: str, stats: Any) -> str:
        """What about the matrix makes a variant the right one, in a few words."""
        raise NotImplementedError

    @classmethod
    def _alternatives(cls, csr: CSR) -> list[int]:
        """Other values of the keyword ``_tuned`` than the default that are worth a measurement."""
        return []

    def _like(self, csr: CSR) -> Self:
        pending = self._pending
        keywords = self._parameters() if pending is None else pending.keywords
        if isinstance(csr.data, np.ndarray):
            return self._from_pending(csr, keywords)
        return type(self)(csr, **keywords)

    def _map(self, function: Callable[[Any], Any]) -> Self:
        pending = self._pending
        if pending is not None:
            data = np.ascontiguousarray(function(pending.csr.data))
            return self._like(pending.csr._replace(data=data))
        with self._target.use():
            results = encoding.mapped(encoding.table(self._tables), function)
            if results is not None:
                return self._with_table(self._values(self._tables), results)
            return self._with_table(function(self._plain_values()))

    def _values_at(self, slots: Any) -> Any:
        """The values in these slots of the value table, on the current device."""
        return encoding.looked_up(self._tables, self._values(encoding.numbered(type(self), self._tables))[slots])

    def _plain_values(self) -> Any:
        """(n_slots,) the values as they lie in the value table where it stores them as they are."""
        return encoding.plain(self)

    def _is_like(self, other: Any) -> bool:
        """Whether `other` is an array of the same format whose tables, but for the values, are the same."""
        if type(other) is not type(self) or other._target != self._target or self._pending or other._pending:
            return False
        with self._target.use():
            return other._structure is self._structure or same_tables(self._tables, other._tables, self._value_table)

    def _with_table(self, values: Any, distinct: Any = None) -> Self:
        """The array of the same structure around another value table, on the same device; `distinct` as in the tables."""
        if self._target.kind == "cuda":
            values = self._target.xp.ascontiguousarray(values)
        elif values.ctypes.data % 64 or not values.flags.c_contiguous:  # the CPU's kernels want it at a cache line
            values = _aligned(values, self._target)
        array = object.__new__(type(self))
        array._tables = tables = encoding.with_values(type(self), self._tables, values, distinct)
        array._open(self._target, tables, encoding.dtype_of(type(self), tables))
        array._structure = self._structure
        _protect([self._values(tables), encoding.table(tables)])  # the others are
        return array

    def _empty_values(self, dtype: np.dtype) -> Any:
        """An uninitialised value table of this structure."""
        return _empty(self._n_slots(self._tables), dtype, self._target)

    def _take_table(self, values: Any) -> None:
        """Have this value table from now on, which stores values as they are."""
        self._tables = encoding.with_values(type(self), self._tables, values, None)
        _protect([values])
        self._kernels, self._ready = {}, {}  # new ones, as another thread may be about to enter what it made of old tables

    def _values_change(self) -> None:
        """Drop what was computed from the values, before these are replaced."""
        self._version = None
        self._drop_derived()

    def _values_changed(self) -> None:
        """Drop or renew what was computed from the values, after these were replaced.

        That is the CSR that is kept, the transpose, which gets the new values before its next product, and
        products whose ``run`` has a ``renew()``. A product without it reads the value table in every call.
        """
        self._is_written_by_graphs |= self._target.is_capturing()
        self._version = next(_WRITES)
        self._drop_derived()
        for run in list(self._kernels.values()):
            if hasattr(run, "renew"):
                run.renew()
        if self._has_graphs_of_transpose and self._transpose_is_old:  # they multiply without a call of ours
            keep(self)

    def _values_lost(self) -> None:
        """Drop all that was computed from the values, after replacing them was interrupted."""
        self._version = next(_WRITES)
        self._drop_derived()
        self._kernels, self._ready = {}, {}

    def _drop_derived(self) -> None:
        self._kept.drop(self)
        self._ready_transposed = {}  # a new one, as in _take_table

    @property
    def _transpose_is_old(self) -> bool:
        """Whether there are tables of the transpose that have not got the array's values yet."""
        is_current = self._version is not None and self._transpose_version == self._version
        return isinstance(self._transpose, SparseArray) and not is_current

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    @property
    def nnz(self) -> int:
        return self._nnz

    @property
    def _stored_as(self) -> str:
        distinct = None if self._pending is not None else encoding.table(self._tables)
        return "" if distinct is None else described(distinct)

    @property
    def nbytes(self) -> int:
        pending = self._pending
        held = self._tables if pending is None else pending.csr[:3]
        return sum(array.nbytes for array in held if hasattr(array, "nbytes"))

    @property
    def T(self) -> TransposedArray:
        return TransposedArray(self)

    def copy(self) -> Self:
        with self._target.use():
            own = {name: _aligned(table, self._target) for name, table in self._arrays().items()}
        return self._from_tables(self._tables._replace(**own), self.plan)

    def to_device(self, device: Any) -> Self:
        device = devices.parse(device)
        if device == self._target:
            return self
        if device.kind == "cuda":
            moved = {name: devices.move(table, device) for name, table in self._arrays().items()}
        else:  # to cache lines, as the CPU's kernels want them
            empty = device.backend("runtime.memory").empty
            moved = {n: t.get(out=empty(t.size, t.dtype).reshape(t.shape)) for n, t in self._arrays().items()}
        return self._from_tables(self._tables._replace(**moved), self.plan)

    def _plain(self) -> Self:
        """The array with its values stored as they are; itself where they are."""
        if encoding.table(self._tables) is None:
            return self
        with self._target.use():
            array = self._with_table(self._plain_values())
        array._plan = self._plan
        return array

    def _arrays(self) -> dict[str, Any]:
        """The tables that are arrays, by name."""
        return {name: table for name, table in self._tables._asdict().items() if hasattr(table, "nbytes")}

    def check(self) -> None:
        for invariant, holds in self.to_device(devices.CPU)._invariants():
            if not holds:
                raise ValueError(f"{type(self).__name__} breaks invariant {invariant}")

    def _invariants(self) -> Iterator[tuple[str, Any]]:
        """(invariant in words, whether it holds) of an array on the CPU; each may rely on those before it, that held."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _from_pickle, (type(self), *serialized.packed(self, protocol))

    def _coo(self) -> tuple[Any, Any, Any]:
        csr = self._held_csr() or self._decoded()
        return coercion.rows(csr), csr.indices, csr.data

    def _part(self, first: int, last: int) -> tuple[Any, int]:
        """The tables of the tiles that hold the rows [first, last), and the number of the row that they call 0.

        Only ``to_csr`` of the device's module takes such tables: nnz is not theirs. Here: all of them.
        """
        return self._tables, 0

    def _csr_at_hand(self, n_rows: int | None = None) -> CSR | None:
        """The canonical CSR where it is there, or is to be kept from now on, as so many rows (default: all) are wanted
        again; nobody writes to its arrays.
        """
        csr = self._held_csr()
        if csr is None and self._kept.is_wanted(self, self.shape[0] if n_rows is None else n_rows):
            version = self._version
            csr = self._decoded()
            self._kept.keep(self, csr, version)
        return csr

    def _held_csr(self) -> CSR | None:
        """The canonical CSR where it is there."""
        pending = self._pending
        return self._kept.current(self) if pending is None else pending.csr

    def _canonical_csr(self) -> CSR:
        return self._csr_at_hand() or self._decoded()

    def _decoded(self) -> CSR:
        """The canonical CSR, of new arrays, from the tables."""
        to_csr = self._module(self._target).to_csr
        csr: CSR = to_csr(encoding.numbered(type(self), self._tables), 0, self.shape[0])
        return csr._replace(data=encoding.looked_up(self._tables, csr.data))

    def _own_csr(self) -> CSR:
        csr = self._held_csr()
        if csr is None:
            return self._decoded()
        return csr._replace(indptr=csr.indptr.copy(), indices=csr.indices.copy(), data=csr.data.copy())

    def _row_sums(self, dtype: np.dtype) -> Any:
        run: Any = self._kernel("row_sums", dtype) if hasattr(self._module(self._target), "row_sums") else None
        if run is None:
            return None
        sums = self._target.xp.empty(self.shape[0], dtype)
        run(sums)
        return sums

    def _diagonal(self, offset: int) -> Any:
        diagonal = getattr(self._module(self._target), "diagonal", None)
        if diagonal is None or self._pending is not None:
            return super()._diagonal(offset)
        distinct = encoding.table(self._tables)
        if pads_with_zero(distinct):
            return encoding.looked_up(self._tables, diagonal(encoding.numbered(type(self), self._tables), offset))
        found = diagonal(encoding.numbered_from_one(type(self), self._tables), offset)
        return self._target.xp.where(found > 0, distinct[found - (found > 0)], distinct.dtype.type(0))

    def _canonical_rows(self, first: int, last: int) -> CSR:
        if self._csr_at_hand(last - first if last - first >= PART * self.shape[0] else 0) is not None:
            few = super()._canonical_rows(first, last)
            return few._replace(indices=few.indices.copy(), data=few.data.copy())  # which do not keep the others
        tables, begin = self._part(first, last)
        tables = encoding.numbered(type(self), tables)
        rows: CSR = self._module(self._target).to_csr(tables, first - begin, last - begin)
        return rows._replace(data=encoding.looked_up(self._tables, rows.data))

    def _kernel(self, kind: str, dtype: np.dtype) -> Run:
        kernels, version = self._kernels, self._version
        run = kernels.get((kind, dtype))
        if run is None:
            prepare = getattr(self._module(self._target), kind, None)
            run = prepare(self._tables, dtype) if prepare else getattr(self, f"_{kind}")(dtype)
            if self._is_written_by_graphs and hasattr(run, "renew"):  # a graph that is there does not
                run = _renewed_by_each_call(run)
            kernels[kind, dtype] = run
            if version is None or version != self._version:  # its copy of the values, if it has one, may be neither's
                kernels.pop((kind, dtype), None)
        return run

    def _product_matrix(self, dtype: np.dtype) -> Run:
        """``A @ X`` of a format whose module has none: column by column."""
        product, xp = self._kernel("product", dtype), self._target.xp

        def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
            for column in range(x.shape[1]):
                sums = xp.ascontiguousarray(y[:, column])
                product(xp.ascontiguousarray(x[:, column]), sums, alpha, beta)
                y[:, column] = sums

        return run

    def _product_transposed(self, dtype: np.dtype) -> Run:
        """``A.T @ x`` of a format whose module has none, where no tables are kept."""
        return by_panels(self, "product", dtype)

    def _entries(self) -> Any:
        if self._structure.slots is None:
            return super()._entries()
        with self._target.use():
            return self._values_at(self._structure.slots)

    def _places(self) -> tuple[Any, Any]:
        if self._place_cache is None:
            with self._target.use(), self._target.aside():
                self._place_cache = super()._places()
        return self._place_cache

    def _slots(self) -> Any:
        """(nnz,) where each entry of the canonical CSR lies in the value table; computed once, by converting the
        numbers.
        """
        if self._structure.slots is None:
            self._structure.slots = self._slot_numbers()._canonical_csr().data
        return self._structure.slots

    def _slot_numbers(self) -> Self:
        """The same structure with each slot's number for its value."""
        size = self._n_slots(self._tables)
        with self._target.use():
            return self._with_table(self._target.xp.arange(size, dtype=np.int32 if size < 2**31 else np.int64))

    def _order(self, slots: CSR) -> Any:
        """What ``fill(tables, order, data, values)`` of the device's module needs to know of the order of the canonical
        CSR.

        `slots` is that CSR, with the slot of each entry for its value. Only formats whose modules have ``fill`` define
        it.
        """
        raise NotImplementedError


def _renewed_by_each_call(run: Any) -> Run:
    """`run`, whose copy of the values is not trusted to be new."""

    def renewed(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        run.renew()
        run(x, y, alpha, beta)

    return renewed


def _protect(tables: Iterable[Any]) -> None:
    """Make tables in host memory immutable; and one kind of array for Numba, whether converted or mapped from a file."""
    for table in tables:
        if isinstance(table, np.ndarray):
            table.setflags(False)  # type: ignore[call-arg]  # by position: half the time, and there are many tables


def _empty(size: int, dtype: np.dtype, target: devices.Device) -> Any:
    """Uninitialised 1-D array; on the CPU it begins at a cache line, as the kernels want it."""
    return target.backend("runtime.memory").empty(size, dtype) if target.kind == "cpu" else target.xp.empty(size, dtype)


def _aligned(table: Any, target: devices.Device) -> Any:
    """A copy of `table`, placed as :func:`_empty` does."""
    own = _empty(table.size, table.dtype, target).reshape(table.shape)
    own[...] = table
    return own


def _from_pickle(array_class: type[FormatArray], header: bytes, *buffers: Any) -> SparseArray:
    """The array of a pickle or a message."""
    _meet_distributed()
    return serialized.unpacked(array_class, header, buffers)


def _meet_distributed() -> None:
    """Let a worker of distributed know of our arrays: it meets them first in a message, before any call of ours."""
    if "distributed" in sys.modules:
        extensions.load("dask").register()


_meet_distributed()
