"""Assembly: values that arrive in one order again and again, many to an entry, as arrays of ours.

Finite elements, pose graphs and circuits add up contributions: each names a row and a column, or a block of rows and
columns, and several name the same. Which ones do stays the same while their values change, from time step to time step
or from Newton step to Newton step. So the coordinates are sorted and merged once, and each call adds up values alone.

The structure of the array is a conversion of the numbers that entries have: of each slot of the value table it tells
which entry it holds, or which row of which block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import formats
from ..array import encoding
from ..array import values as renewal
from ..array.blocks import expanded, sources_of
from ..array.format import FormatArray
from ..array.invariants import integer
from ..array.stack import Stack, checked, stacked
from ..bbcsr import BBCSRArray
from ..core import devices
from ..core.tables import CSR, WARP, Blocks, Sources
from ..input import coercion
from .model import choose, statistics, statistics_of_blocks


class Layout(NamedTuple):
    """The structure of a plan's arrays of one dtype, and where values go in it."""

    like: FormatArray  # its values mean nothing
    sources: Sources
    reason: str | None  # why the format was chosen


class Assembly:
    """A plan that makes arrays from values at coordinates that stay the same: ``A = plan(values)``.

    Parameters
    ----------
    rows, cols : (n,) integers
        Where each value goes, in any order; with `block_size` where each block goes, counted in blocks. Those that name
        the same place are summed.
    shape : (n_rows, n_cols), optional
        Default: just large enough. Entries of blocks that reach over it are left out.
    block_size : int
        1 to 32. Above 1 values are blocks, (n, block_size, block_size), and every number of a block is a stored entry.
    format : {"auto", "cvr", "bbcsr"}
        Of the arrays. ``"bbcsr"`` has blocks of `block_size`. ``"auto"`` chooses as :func:`cvrarray.asarray` does, for
        each dtype of values.
    device : str, optional
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: where `rows` lives.

    Raises
    ------
    TypeError, ValueError
        `rows` and `cols` are no integers, differ in length, or lie outside `shape`; a parameter is out of range.

    Notes
    -----
    ``plan(values, out=A)`` renews an array that the plan made before: nothing is allocated, and on a GPU it can be
    captured in a CUDA graph. Sums are added in the order in which values come, so their bits are the same in every
    call, on every device, and with `out` or without.

    The coordinates are sorted and merged here, and the structure of the arrays is made at the first call in a dtype.
    The plan keeps, for each dtype, 4 bytes a stored slot, or 4 over `block_size` where arrays are BBCSR with blocks of
    that size; where values are summed, 4 bytes a value and stored entry more (over `block_size` in the same case; else
    twice that at most).

    Examples
    --------
    >>> plan = cvrarray.Assembly([0, 1, 1, 0], [0, 1, 1, 2])
    >>> A = plan(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> A.todense()
    array([[1., 0., 4.],
           [0., 5., 0.]])
    >>> plan(np.array([1.0, 1.0, 1.0, 1.0]), out=A) is A, A.todense()[1, 1]
    (True, np.float64(2.0))
    """

    def __init__(
        self,
        rows: Any,
        cols: Any,
        *,
        shape: tuple[int, int] | None = None,
        block_size: int = 1,
        format: str = "auto",
        device: Any = None,
    ):
        formats.check(format, auto=True)
        self.block_size = integer(block_size, "block_size", 1, WARP)
        rows, cols = coercion.as_integers(rows, "rows"), coercion.as_integers(cols, "cols")
        home = coercion.same_device(rows=rows, cols=cols)
        self._target = home if device is None else devices.parse(device)
        rows, cols = (devices.move(index, self._target) for index in (rows, cols))
        with self._target.use():
            self.shape = _checked_shape(rows, cols, shape, self.block_size)
            n_rows, n_cols = (-(-n // self.block_size) for n in self.shape)
            index = coercion.index_dtype(self.shape)
            self._order, self._first = self._target.backend("assembly").sort(rows, cols, (n_rows, n_cols))
            places = self._order[self._first[:-1]]
            indptr = self._target.xp.searchsorted(rows[places], self._target.xp.arange(n_rows + 1))
            self._blocks = Blocks(indptr, cols[places].astype(index), self.block_size, self.shape)
        self.n_values = int(rows.size)
        self._format = format
        self._layouts: dict[np.dtype, Layout] = {}

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:N"``.

        Examples
        --------
        >>> cvrarray.Assembly([0, 1], [0, 1], device="cpu").device
        'cpu'
        """
        return str(self._target)

    @property
    def n_places(self) -> int:
        """How many different places (blocks, or entries with a block size of 1) the coordinates name.

        Examples
        --------
        >>> cvrarray.Assembly([0, 1, 1], [0, 1, 1], device="cpu").n_places
        2
        """
        return int(self._blocks.indices.size)

    def __repr__(self) -> str:
        what = "values" if self.block_size == 1 else f"blocks of {self.block_size} x {self.block_size}"
        return (
            f"<Assembly {self.shape[0]} x {self.shape[1]}, {self.n_values} {what} at {self.n_places} places, "
            f"format={self._format}, device={self.device}>"
        )

    def __call__(self, values: Any, out: FormatArray | None = None) -> FormatArray:
        """The array of these values, duplicates summed in the order in which they come.

        Parameters
        ----------
        values : (n,) array, or (n, block_size, block_size), on the plan's device
        out : array, optional
            An array of this plan, which gets the values in place and keeps its dtype.

        Returns
        -------
        array of the plan's format, of the dtype of `values`
            `out` where given.

        Raises
        ------
        TypeError
            `values` are on another device, or of a dtype that cannot be stored, or not in `out`; `out` is of another
            format.
        ValueError
            The shape of `values` or the structure of `out` is not the plan's.
        """
        if not (out is None or isinstance(out, FormatArray)):
            raise TypeError(f"out must be an array that this plan made; got {type(out).__name__}")
        with self._target.use():
            values = self._checked(values)
            layout = self._layout(coercion.check_dtype((values if out is None else out).dtype))
            if out is not None:
                renewed: FormatArray = renewal.write(layout.like, layout.sources, values, renewal.checked_out(layout.like, out))
                return renewed
            array: FormatArray = renewal.write(layout.like, layout.sources, values)
            array._plan = layout.reason
            return array

    def stack(self, values: Any) -> Stack:
        """The arrays ``plan(values[i])`` as one: see :meth:`cvrarray.CVRArray.stack`.

        Parameters
        ----------
        values : (batch, n) array, or (batch, n, block_size, block_size), on the plan's device

        Raises
        ------
        TypeError, ValueError
            As a call; there is no element.

        Examples
        --------
        >>> plan = cvrarray.Assembly([0, 1, 1], [0, 1, 1], device="cpu")
        >>> plan.stack(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])) @ np.ones(2)
        array([[ 1.,  5.],
               [ 4., 11.]])
        """
        with self._target.use():
            size = self.block_size
            shape = (self.n_values, size, size) if np.ndim(values) == 4 or size > 1 else (self.n_values,)
            values = checked(self, values, "values", shape, "in the order of the plan's coordinates")
            layout = self._layout(coercion.check_dtype(values.dtype))
            return stacked(layout.like, layout.sources, values.reshape(len(values), -1))

    def _checked(self, values: Any) -> Any:
        """The values as a flat array on the plan's device."""
        if not (isinstance(values, np.ndarray) or coercion.package(values) == "cupy"):
            values = np.asarray(values)
        if devices.of(values) != self._target:
            remedy = "cupy.asarray(values)" if self._target.kind == "cuda" else "values.get()"
            raise TypeError(f"values must be on the plan's device, {self.device}; got {devices.of(values)}. Use {remedy}")
        size = self.block_size
        shapes = [(self.n_values, size, size)] + [(self.n_values,)] * (size == 1)
        if values.shape not in shapes:
            raise ValueError(f"values must have shape {shapes[-1]}, in the order of the plan's coordinates; got {values.shape}")
        return values.reshape(-1)

    def _layout(self, dtype: np.dtype) -> Layout:
        if dtype not in self._layouts:
            cls, keywords, reason = self._chosen(dtype)
            # blocks that reach over the right edge have holes there: they are placed number by number
            is_whole = self.shape[1] % self.block_size == 0
            if issubclass(cls, BBCSRArray) and keywords["block_size"] == self.block_size and is_whole:
                unit = self.block_size
                tables, source = cls._of_blocks(self._blocks, self._target)
                like: FormatArray = cls._from_tables(tables)
            else:
                unit = 1
                numbers = expanded(self._blocks, 1)
                values = self._target.xp.broadcast_to(self._target.xp.zeros(1, dtype), numbers.data.shape)
                defaults = cls._for_conversion(numbers._replace(data=values), self._target) if numbers.nnz else {}
                numbered = cls(numbers, **defaults | keywords)
                source = encoding.plain(numbered)
                nothing = self._target.xp.broadcast_to(source[:0].sum(), source.shape)
                like = cls._from_tables(encoding.with_values(cls, numbered._tables, nothing, None))
            sources = sources_of(source, unit, (self._order, self._first), self.block_size**2 // unit)
            self._layouts[dtype] = Layout(like, sources, reason)
        return self._layouts[dtype]

    def _chosen(self, dtype: np.dtype) -> tuple[type[FormatArray], dict[str, Any], str | None]:
        """The format, its constructor's keywords, and why."""
        if self._format != "auto":
            return formats.named(self._format), {"block_size": self.block_size} if self._format == "bbcsr" else {}, None
        if self.block_size > 1:
            stats = statistics_of_blocks(self._blocks, dtype)
        else:
            values = self._target.xp.broadcast_to(self._target.xp.zeros(1, dtype), self.n_places)
            stats = statistics(CSR(self._blocks.indptr, self._blocks.indices, values, self.shape), exact=False)
        plan = choose(stats, self._target.kind)
        return formats.named(plan.format), plan.keywords, plan.reason


def _checked_shape(rows: Any, cols: Any, shape: Any, size: int) -> tuple[int, int]:
    """The shape of the matrix, once the coordinates lie in it."""
    if rows.size != cols.size:
        raise ValueError(f"rows and cols must have one length; got {rows.size} and {cols.size}")
    most = tuple(int(index.max()) if index.size else -1 for index in (rows, cols))
    if shape is None:
        shape = tuple(size * (number + 1) for number in most)
    checked = coercion.check_shape(shape)
    for name, index, number, n in zip(("rows", "cols"), (rows, cols), most, checked, strict=True):
        bound = -(-n // size)
        if index.size and (number >= bound or int(index.min()) < 0):
            bad = number if number >= bound else int(index.min())
            raise ValueError(f"{name} must lie in [0, {bound}) for shape {checked} in blocks of {size}; got {bad}")
    return checked
