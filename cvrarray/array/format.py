"""An array that holds its matrix itself, as the tables of one format on one device: what CVR and BBCSR share."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self
from weakref import WeakValueDictionary

import numpy as np

from ..core import devices, extensions
from ..core.arrays import Run
from ..core.distinct import described
from ..core.tables import CSR
from ..input import coercion, limits
from . import encoding, serialized
from .base import SparseArray
from .kept import PART, Origin, Pending, Products, Structure, Transpose, forget
from .products import by_columns
from .transposed import TransposedArray, by_panels, keep

#: Number -> array or preconditioner, while it lives: operators of PyTorch take numbers, not arrays. Code that
#: ``torch.compile`` has compiled may be the first to meet an array, and only reads its number: so every array is entered.
LIVING: WeakValueDictionary[int, Any] = WeakValueDictionary()
_NUMBERS = itertools.count(1)
_WRITES = itertools.count(1)  # a number for each write of values, of whichever array

#: Every format that is known, by name, in the order in which they are compared.
FORMATS: dict[str, type[FormatArray]] = {}


def entered(one: Any) -> int:
    """The number under which `one` is found in LIVING from now on."""
    number = next(_NUMBERS)
    LIVING[number] = one
    return number


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
    whole: Sequence[int]  # block sizes that windows do not count, by which all of the matrix is in blocks without holes


class _OnDemand:
    """The tables of an array that is :class:`Pending`; those of all others stand in the array itself, before this.

    ``functools.cached_property`` of Python 3.11 has a lock for all arrays, which a forked child could find closed.
    """

    def __get__(self, array: Any, owner: Any = None) -> Any:
        if array is None:
            return self
        pending = array._origin.pending
        if pending is not None:
            made = type(array)(pending.csr, **pending.keywords)._tables
            array.__dict__.setdefault("_tables", made)  # two threads may get here: the first one's tables count
            array._origin.pending = None
        return array.__dict__["_tables"]


class FormatArray(SparseArray):
    """A sparse array whose tables (``_tables``, a named tuple of arrays) all live on :attr:`device`.

    A format is a subclass. Defining it makes it known to ``asarray(format=...)``, files, stores, Dask and the command
    line. It says

    - ``format``, its name, which is also that of its two modules of kernels, ``cvrarray.cpu.<name>`` and
      ``cvrarray.gpu.<name>``, or ``_modules`` where these lie elsewhere;
    - ``_table_type``, ``_value_table``, ``_stored``: its tables and how they lie in files;
    - ``_invariants``: what :meth:`check` verifies; ``_layout`` and ``_parameters`` for the repr and derived arrays;
    - ``_wants``, ``_for_conversion``, ``_n_slots``, ``_part``, ``_order`` where the defaults below are not enough;
    - ``_tuned``, ``_variants``, ``_microseconds``, ``_for_columns``, ``_why``, where ``asarray(format="auto")`` shall
      consider it. A variant's name is the format's, followed by the value of the keyword ``_tuned`` where it has one.

    A module of kernels has ``convert(csr, **keywords) -> tables``, ``product(tables, dtype) -> run`` and
    ``to_csr(tables, first, last)``, the canonical CSR of the rows [first, last). Optional are
    ``product_matrix``, ``product_transposed``, and ``fill(tables, order, data, values)``, which writes a value table: with
    it goes the method ``_order``. On a CPU also ``row_sums(tables, dtype)``, which gives a ``run(y)`` or None.
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
    _origin: Origin  # its canonical CSR, where that is there beside the tables, or instead
    _products: Products  # with itself, as they are prepared
    _transpose: Transpose  # tables of the transpose and products with it
    _structure: Structure  # what arrays know together that differ in their values alone
    _number: int  # of this array alone: what an operator of PyTorch takes in its place
    #: Number of the last write of its values, None while they are replaced. What is computed from values is kept with the
    #: number that was read before, and used only while that is the number still.
    _version: int | None
    _is_written_by_graphs: bool  # whether CUDA graphs replace values, without that anyone is told

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
        csr = coercion.from_arguments(obj, shape, dtype, self._wants(**keywords), target)
        target = target or devices.of(csr.data)
        with target.use():
            try:
                self._open(self._convert(coercion.move(csr, target), target, encodes, **keywords))
                encoding.protect(self._tables)
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
    def _module(cls, target: devices.Device) -> ModuleType:
        """The format's kernels on a device."""
        return cls._modules.get(target.kind) or target.backend(cls.format)

    @classmethod
    def _from_tables(cls, tables: Any, plan: str | None = None) -> Self:
        """An array around tables as they are, or one that is :class:`Pending`. Nothing is checked: see :meth:`check`."""
        self = object.__new__(cls)
        self._open(tables, plan)
        if not isinstance(tables, Pending):
            encoding.protect(tables)
        return self

    def _open(self, tables: Any, plan: str | None = None) -> None:
        """Become the array that knows nothing but its matrix: its tables, or what they will be made of."""
        self._origin, self._products, self._transpose = Origin(), Products(), Transpose()
        if isinstance(tables, Pending):
            self._origin.pending, matrix = tables, tables.csr
            self._target, self._dtype = devices.CPU, matrix.data.dtype
        else:
            self._tables = matrix = tables
            self._target, self._dtype = devices.of(self._values(tables)), encoding.dtype_of(type(self), tables)
        self._plan, self._shape, self._nnz = plan, matrix.shape, int(matrix.nnz)
        self._dense_type = self._target.xp.ndarray
        self._structure, self._version = Structure(), 0
        self._of_graphs, self._is_written_by_graphs = [], self._target.is_capturing()
        self._number = entered(self)

    # ------------------------------------------------------------------------------------- what a format may say of itself

    @classmethod
    def _wants(cls, **keywords: Any) -> coercion.Wants | None:
        """What a conversion with the constructor's keywords will want to know of a CSR, if a GPU checks it."""
        return None

    @classmethod
    def _for_conversion(cls, csr: CSR, target: devices.Device, **keywords: Any) -> dict[str, Any]:
        """What the module's ``convert`` takes, and the constructor too, for its keywords and a canonical CSR on `target`."""
        return keywords

    @classmethod
    def _n_slots(cls, tables: Any) -> int:
        """Values that a value table has where it stores them as they are, or so many at least."""
        return int(cls._values(tables).size)

    def _parameters(self) -> dict[str, Any]:
        """The constructor's keywords that an array derived from this one should be made with."""
        return {}

    def _layout(self) -> str:
        return f"{sum(hasattr(table, 'nbytes') for table in self._tables)} tables"

    def _part(self, first: int, last: int) -> tuple[Any, int]:
        """The tables of the tiles that hold the rows [first, last), and the number of the row that they call 0.

        Only ``to_csr`` of the device's module takes such tables: nnz is not theirs. Here: all of them.
        """
        return self._tables, 0

    def _order(self, slots: CSR) -> Any:
        """What ``fill(tables, order, data, values)`` of the device's module needs to know of the order of the canonical
        CSR.

        `slots` is that CSR, with the slot of each entry for its value. Only formats whose modules have ``fill`` define
        it.
        """
        raise NotImplementedError

    @classmethod
    def _variants(cls, sample: Sample, smallest: float) -> dict[str, tuple[int, float]]:
        """What ``asarray(format="auto")`` may choose: name -> bytes of the tables, and stored slots over nonzeros.

        A name is the format's, followed by a number where there are several. Unless ``sample.exact``, those that take
        more bytes than `smallest`, another format's, may be left out.
        """
        return {}

    @classmethod
    def _microseconds(cls, name: str, stats: Any, device: str, streaming: float, columns: int) -> float:
        """Time of a product of a variant with so many columns (1: a vector) on a kind of device, where streaming its tables
        takes `streaming` microseconds.
        """
        raise NotImplementedError

    @classmethod
    def _for_columns(cls, csr: CSR, columns: int) -> dict[str, Any]:
        """The constructor's keywords for products of `csr` with so many columns, but for those of the variant."""
        return {}

    @classmethod
    def _why(cls, name: str, stats: Any) -> str:
        """What about the matrix makes a variant the right one, in a few words."""
        return f"rows have {stats.row_min} to {stats.row_max} nonzeros"

    # ---------------------------------------------------------------------------------------------- what all formats share

    @classmethod
    def _values(cls, tables: Any) -> Any:
        """The array of `tables` that holds the stored values."""
        return getattr(tables, cls._value_table)

    def _like(self, csr: CSR) -> Self:
        pending = self._origin.pending
        keywords = self._parameters() if pending is None else pending.keywords
        if isinstance(csr.data, np.ndarray):
            return self._from_tables(Pending(csr, keywords))
        return type(self)(csr, **keywords)

    def _map(self, function: Callable[[Any], Any]) -> Self:
        pending = self._origin.pending
        if pending is not None:
            data = np.ascontiguousarray(function(pending.csr.data))
            return self._like(pending.csr._replace(data=data))
        with self._target.use():
            results = encoding.mapped(encoding.table(self._tables), function)
            if results is not None:
                return self._with_table(self._values(self._tables), results)
            return self._with_table(function(encoding.plain(self)))

    def _with_table(self, values: Any, distinct: Any = None) -> Self:
        """The array of the same structure around another value table, on the same device; `distinct` as in the tables."""
        if self._target.kind == "cuda":
            values = self._target.xp.ascontiguousarray(values)
        elif values.ctypes.data % 64 or not values.flags.c_contiguous:  # the CPU's kernels want it at a cache line
            values = encoding.copied(values, self._target)
        array = object.__new__(type(self))
        array._open(encoding.with_values(type(self), self._tables, values, distinct))
        array._structure = self._structure
        encoding.protect((values, distinct))  # the others are
        return array

    def _values_changed(self, is_whole: bool = True) -> None:
        """Drop or renew what was computed from the values, after these were replaced.

        That is the CSR that is kept, the transpose, which gets the new values before its next product, and
        products whose ``run`` has a ``renew()``. A product without it reads the value table in every call. Where the write
        was interrupted all is dropped.
        """
        forget(self, next(_WRITES))
        if not is_whole:
            self._products.drop()
            return
        self._is_written_by_graphs |= self._target.is_capturing()
        self._products.renew()
        if self._transpose.is_in_graphs and self._transpose.is_old(self._version):  # they multiply without a call of ours
            keep(self)

    @property
    def _stored_as(self) -> str:
        distinct = None if self._origin.pending is not None else encoding.table(self._tables)
        return "" if distinct is None else described(distinct)

    @property
    def nbytes(self) -> int:
        pending = self._origin.pending
        held = self._tables if pending is None else pending.csr[:3]
        return sum(array.nbytes for array in held if hasattr(array, "nbytes"))

    @property
    def T(self) -> TransposedArray:
        return TransposedArray(self)

    def copy(self) -> Self:
        return self._from_tables(encoding.copies(self._tables, self._target), self.plan)

    def to_device(self, device: Any) -> Self:
        device = devices.parse(device)
        return self if device == self._target else self._from_tables(encoding.copies(self._tables, device), self.plan)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _from_pickle, (type(self), *serialized.packed(self, protocol))

    def _canonical_csr(self) -> CSR:
        return self._origin.read(self, self.shape[0]) or encoding.decoded(self)

    def _own_csr(self) -> CSR:
        csr = self._origin.csr(self._version)
        if csr is None:
            return encoding.decoded(self)
        return csr._replace(indptr=csr.indptr.copy(), indices=csr.indices.copy(), data=csr.data.copy())

    def _canonical_rows(self, first: int, last: int) -> CSR:
        if self._origin.read(self, last - first if last - first >= PART * self.shape[0] else 0) is not None:
            few = super()._canonical_rows(first, last)
            return few._replace(indices=few.indices.copy(), data=few.data.copy())  # which do not keep the others
        tables, begin = self._part(first, last)
        return encoding.rows(self, tables, first - begin, last - begin)

    def _row_sums(self, dtype: np.dtype) -> Any:
        run: Any = self._kernel("row_sums", dtype) if hasattr(self._module(self._target), "row_sums") else None
        if run is None:
            return None
        sums = self._target.xp.empty(self.shape[0], dtype)
        run(sums)
        return sums

    def _kernel(self, kind: str, dtype: np.dtype) -> Run:
        kernels, version = self._products.kernels, self._version
        run = kernels.get((kind, dtype))
        if run is None:
            prepare = getattr(self._module(self._target), kind, None)
            run = prepare(self._tables, dtype) if prepare else _FALLBACKS[kind](self, dtype)
            if self._is_written_by_graphs and hasattr(run, "renew"):  # a graph that is there does not
                run = _renewed_by_each_call(run)
            kernels[kind, dtype] = run
            if version is None or version != self._version:  # its copy of the values, if it has one, may be neither's
                kernels.pop((kind, dtype), None)
        return run


#: Kind -> what multiplies where a format's module has no function of that name.
_FALLBACKS: dict[str, Callable[[FormatArray, np.dtype], Run]] = {
    "product_matrix": lambda array, dtype: by_columns(array._kernel("product", dtype)),
    "product_transposed": lambda array, dtype: by_panels(array, "product", dtype),
}


def _renewed_by_each_call(run: Any) -> Run:
    """`run`, whose copy of the values is not trusted to be new."""

    def renewed(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        run.renew()
        run(x, y, alpha, beta)

    return renewed


def _from_pickle(array_class: type[FormatArray], header: bytes, *buffers: Any) -> SparseArray:
    """The array of a pickle or a message."""
    _meet_distributed()
    return serialized.unpacked(array_class, header, buffers)


def _meet_distributed() -> None:
    """Let a worker of distributed know of our arrays: it meets them first in a message, before any call of ours."""
    if "distributed" in sys.modules:
        extensions.load("dask").register()


_meet_distributed()
