"""Products with a matrix on disk: panels go disk -> host -> device -> product, one after the other, all at once.

While one panel is multiplied the next is copied to the device and those after it are read, by several threads. At most
`hold` panels are on their way; others stay on the device for the next product as long as they fit the budget.
"""

from __future__ import annotations

import functools
import operator
import os
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Self

import numpy as np

from .. import formats
from ..array import products, reductions
from ..array.base import SparseArray
from ..array.transposed import TransposedArray
from ..core import devices
from ..core.progress import shown
from ..cpu.runtime import memory
from ..input import coercion, partition
from . import layout, steps


class Stored(steps.Functions):
    """A sparse matrix on disk, as :func:`cvrarray.to_store` writes it: ``A @ x`` streams its panels of rows.

    It is what SciPy's and CuPy's iterative solvers take for an operator. Two products of one `Stored` do not overlap.
    In a ``with`` statement :meth:`close` is called at the end.

    Elementwise functions of NumPy's with f(0) = 0 give another `Stored` of the same panels: ``np.log1p(A)``, ``A * 2``,
    ``abs(A)``, ``A > 1``; of a dense array its product and its quotient: ``A * v[:, None]`` scales rows, ``A / w`` divides
    columns. Nothing is read then. Each panel goes through the functions, in their order, when it is read; one that stays
    in memory stays as they made it. Other functions raise, as those of arrays do.

    Parameters
    ----------
    path : str or os.PathLike[str]
        The store.
    device : str, optional
        Where products are computed: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: the GPU when there is one.
    hold : int
        Panels that are read ahead, copied or multiplied at a time, at least 2: this much memory, on the host and on the
        device, is used beside the budget. A panel has `panel_bytes` at most.
    budget : int or str, optional
        Bytes of panels that stay on the device for the next product, such as ``"20 GiB"``; 0 keeps none. Default: half
        of what is free on the device at the first product.
    verify : bool
        Whether to compare the checksums of all that is read, and to verify the invariants of each panel's tables when
        it is first read in this process. A store that is not trusted must be verified: tables that break an invariant
        can make a product read or write anywhere in memory.
    threads : int, optional
        Threads that read. Default: one a core, 16 at most.
    incomplete : bool
        Whether to open a store that is still being written: its rows so far. Otherwise that is an error.

    Raises
    ------
    FileNotFoundError
        There is no store, or it lacks a panel; the message names it.
    ValueError
        The store is damaged, incomplete, or of a newer version, or a parameter is out of range.

    Examples
    --------
    >>> import cvrarray, numpy as np, tempfile
    >>> path = tempfile.mkdtemp() + "/matrix.store"
    >>> cvrarray.to_store(np.diag(np.arange(96.0)), path, chunks=1000, format="cvr", device="cpu")
    >>> A = cvrarray.Stored(path, device="cpu", budget="1 MiB")
    >>> A.shape, A.ndim, A.dtype.name, A.nnz, A.format, A.device
    ((96, 96), 2, 'float64', 95, 'cvr', 'cpu')
    >>> A.n_panels, A.rows, A.panel_bytes < A.nbytes
    (2, (0, 64, 96), True)
    >>> (A @ np.ones(96))[:4], A.resident_bytes == A.nbytes
    (array([0., 1., 2., 3.]), True)
    >>> B = np.sqrt(A * np.full((96, 1), 4.0))  # rows are scaled
    >>> (B @ np.ones(96))[:5]
    array([0.        , 2.        , 2.82842712, 3.46410162, 4.        ])
    """

    ndim = 2
    __array_priority__ = SparseArray.__array_priority__

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: Any = None,
        hold: int = 3,
        budget: int | str | None = None,
        verify: bool = True,
        threads: int | None = None,
        incomplete: bool = False,
    ):
        self.path = os.path.abspath(os.fsdecode(path))
        self._target = devices.default() if device is None else devices.parse(device)
        if type(hold) is not int or hold < 2:
            raise ValueError(f"hold must be an integer of at least 2, for reading and computing to overlap; got {hold!r}")
        if threads is not None and (type(threads) is not int or threads < 1):
            raise ValueError(f"threads must be an integer of at least 1; got {threads!r}. Leave it out for one a core")
        self._hold = hold
        self._budget = budget if budget is None or budget == 0 else partition.n_bytes(budget, "budget")
        self._verify = verify
        self._threads = min(16, os.cpu_count() or 1) if threads is None else threads
        self._incomplete = incomplete
        self._root, self._manifest = manifest(self.path, incomplete)
        self._steps: tuple[steps.Step, ...] = ()
        self._begin()

    def _begin(self) -> None:
        """With nothing in memory."""
        self._resident: dict[int, SparseArray] = {}
        self._staging: Any = None
        self._kept_bytes = self._budget  # None until the first product
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------------------ what it is

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self._manifest[-1].rows[1], self._root.n_cols

    @property
    def dtype(self) -> np.dtype:
        """dtype of the values, once the functions of :class:`Stored` were applied."""
        return self._first_row.dtype if self._steps else np.dtype(self._root.dtype).newbyteorder("=")

    @property
    def format(self) -> str:
        """``"cvr"`` or ``"bbcsr"``."""
        return str(self._root.format)

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return sum(panel.nnz for panel in self._manifest)

    @property
    def nbytes(self) -> int:
        """Bytes of all panels on the disk."""
        return sum(panel.n_bytes for panel in self._manifest)

    @property
    def panel_bytes(self) -> int:
        """Bytes of the largest panel on the disk."""
        return max(panel.n_bytes for panel in self._manifest)

    @property
    def n_panels(self) -> int:
        """Panels."""
        return len(self._manifest)

    @property
    def rows(self) -> tuple[int, ...]:
        """(n_panels + 1,) the first row of each panel, and n_rows."""
        return 0, *(panel.rows[1] for panel in self._manifest)

    @property
    def device(self) -> str:
        """Where products are computed, ``"cpu"`` or ``"cuda:N"``."""
        return str(self._target)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the panels that are on the device now, for the next product."""
        return sum(self._held_bytes(self._manifest[k]) for k in self._resident)

    @property
    def row_names(self) -> np.ndarray | None:
        """(n_rows,) what rows are called, texts: of cells, where the store was made of a file of AnnData's; else None.

        Raises
        ------
        FileNotFoundError, ValueError
            The file with the names is missing or damaged.

        Examples
        --------
        >>> A = cvrarray.CVRArray(np.eye(3), device="cpu")
        >>> import tempfile
        >>> A.row_names = ["cell 1", "cell 2", "cell 3"]
        >>> named = tempfile.mkdtemp() + "/named.store"
        >>> cvrarray.to_store(A, named, device="cpu")
        >>> cvrarray.Stored(named, device="cpu").row_names
        array(['cell 1', 'cell 2', 'cell 3'], dtype=object)
        """
        names = self._names[0]
        return None if names is None else names[: self.shape[0]]

    @property
    def column_names(self) -> np.ndarray | None:
        """(n_cols,) what columns are called, such as genes, or None; as :attr:`row_names`.

        Examples
        --------
        >>> cvrarray.Stored(path, device="cpu").column_names is None
        True
        """
        return self._names[1]

    @functools.cached_property
    def _names(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        return layout.read_names(self.path, self._root)

    def __repr__(self) -> str:
        functions = f", then {', '.join(map(str, self._steps))}" if self._steps else ""
        return (
            f"<Stored {self.shape[0]} x {self.shape[1]}, {self.dtype}, nnz={self.nnz}, {self.format}, "
            f"{self.n_panels} panels, {self.nbytes / 1e6:.3g} MB in {self.path}{functions}, device={self.device}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        how = self.path, self._root.id, str(self._target), self._hold, self._budget, self._verify, self._incomplete
        return _reopen, (*how, self._steps, self._threads)

    def panel(self, k: int) -> SparseArray:
        """Panel `k` as an array of its own, on the device.

        Raises
        ------
        IndexError
            There is no panel `k`.
        FileNotFoundError, ValueError
            It is missing or damaged.

        Examples
        --------
        >>> panel = cvrarray.Stored(path, device="cpu").panel(1)
        >>> type(panel).__name__, panel.shape
        ('CVRArray', (32, 96))
        """
        if not 0 <= k < self.n_panels:
            raise IndexError(f"panel must lie in [0, {self.n_panels}); got {k}")
        kept = self._resident.get(k)
        if kept is not None:
            return kept
        return self._mapped(load(self.path, k, self._manifest[k], self._target, self._verify), k)

    def check(self) -> None:
        """Read every panel, compare all checksums, and verify every invariant of the tables.

        Raises
        ------
        FileNotFoundError, ValueError
            Names the first panel that is missing or damaged.

        Examples
        --------
        >>> cvrarray.Stored(path, device="cpu").check()
        """
        with shown("checking", self.n_panels, "panels") as update:
            for k, panel in enumerate(self._manifest):
                _CHECKED.discard(_identity(self.path, k, panel))
                load(self.path, k, panel, devices.CPU, verify=True)
                update(k + 1)

    def close(self) -> None:
        """Let go of all memory; the next product reads the disk again.

        Examples
        --------
        >>> A = cvrarray.Stored(path, device="cpu", budget="1 MiB")
        >>> y = A @ np.ones(96)
        >>> A.resident_bytes > 0
        True
        >>> A.close()
        >>> A.resident_bytes
        0
        """
        with self._lock, self._target.use():
            if self._staging is not None:
                self._staging.drain()
            self._resident.clear()
            self._staging = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def T(self) -> Any:
        """The transpose as a linear operator of SciPy's, on a GPU of CuPy's; ``A.T @ x`` streams the same panels. A GPU
        converts each of them in every product.

        Examples
        --------
        >>> with cvrarray.Stored(path, device="cpu") as A:
        ...     y = A.T @ np.ones(96)
        >>> y[:4]
        array([0., 1., 2., 3.])
        """
        if self._target.kind == "cuda":
            from cupyx.scipy.sparse.linalg import LinearOperator
        else:
            from scipy.sparse.linalg import LinearOperator

        def conj(x: Any) -> Any:
            return x.conj() if x.dtype.kind == "c" else x

        return LinearOperator(
            self.shape[::-1],
            matvec=lambda x: self.__rmatmul__(x.reshape(-1)),
            rmatvec=lambda x: conj(self.matvec(conj(x.reshape(-1)))),
            matmat=lambda x: self.__rmatmul__(x.T).T,
            dtype=self.dtype,
        )

    # ------------------------------------------------------------------------------------------------ functions

    def _with(self, step: steps.Step) -> Stored:
        """The same panels, which `step` is applied to in the end."""
        mapped = object.__new__(type(self))  # copy.copy would open the store and apply all steps again
        mapped.__dict__.update(self.__dict__)
        mapped._begin()
        mapped._steps = (*self._steps, step)
        with self._target.use():
            first_row = steps.checked(step, self._first_row)
        if not isinstance(first_row, SparseArray):
            raise TypeError(f"a function of a Stored must have one result; {step} has several. Apply it to each panel(k)")
        mapped._first_row = first_row
        return mapped

    @functools.cached_property
    def _first_row(self) -> SparseArray:
        """The first row, if there is one, as if it had no entries: what dtype and errors are found by."""
        with self._target.use():
            csr = coercion.without_entries((min(1, self.shape[0]), self.shape[1]), self.dtype, self._target.xp)
            return formats.named(self.format)(csr, device=str(self._target), **self._root.parameters)

    def _mapped(self, panel: SparseArray, k: int) -> SparseArray:
        """Panel `k` as it is on the disk, with all steps applied."""
        with self._target.use():
            for step in self._steps:
                panel = step(panel, *self._manifest[k].rows)
        return panel

    def _held_bytes(self, panel: layout.Panel) -> int:
        """Memory that a panel takes which stays; about, where steps give it other values beside those on the disk."""
        return panel.n_bytes + (2 * panel.nnz * self.dtype.itemsize if self._steps else 0)

    # ------------------------------------------------------------------------------------------------ reductions

    def sum(self, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
        """The sum of all entries, or along an axis: dense, on the device, as ``numpy.sum``. Panels add up in their
        order.

        Parameters
        ----------
        axis : {None, 0, 1, -1, -2}
        dtype : data type, optional
            In which values are added. Default: NumPy's, which is int64 or uint64 for narrower integers.
        out : None
            Nothing else; ``numpy.sum`` passes it.

        Raises
        ------
        TypeError
            `out` is given.
        FileNotFoundError, ValueError
            As :meth:`matvec`; AxisError: there is no such axis.

        Examples
        --------
        >>> A = cvrarray.Stored(path, device="cpu")
        >>> float(A.sum()), A.sum(axis=1)[:4]
        (4560.0, array([0., 1., 2., 3.]))
        """
        if out is not None:
            raise TypeError(f"out must be left out of the sum of a Stored; got {type(out).__name__}. Copy the result into it")
        axis = None if axis is None else reductions._one_axis(axis)
        with closing(self._panels()) as panels:
            parts = [panel.sum(axis, dtype) for _, _, panel in panels]
        return self._target.xp.concatenate(parts) if axis == 1 else functools.reduce(operator.add, parts)

    def diagonal(self, offset: int = 0) -> Any:
        """A diagonal as a dense vector on the device: the entries ``A[i, i + offset]``.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`matvec`.

        Examples
        --------
        >>> cvrarray.Stored(path, device="cpu").diagonal()[:4]
        array([0., 1., 2., 3.])
        """
        with closing(self._panels()) as panels:
            return self._target.xp.concatenate([panel.diagonal(offset + first) for first, _, panel in panels])

    # ------------------------------------------------------------------------------------------------ products

    def matvec(self, x: Any, out: Any = None) -> Any:
        """``A @ x``, as :meth:`cvrarray.CVRArray.matvec` computes it.

        Parameters
        ----------
        x : (n_cols,) array on the device
            A column, (n_cols, 1), is taken too.
        out : (n_rows,) array, optional

        Returns
        -------
        (n_rows,) array
            The same bits in every call on the same device.

        Raises
        ------
        FileNotFoundError, ValueError
            A panel is missing or damaged; `out` then holds no product.
        TypeError, ValueError
            As of ``CVRArray.matvec``.

        Examples
        --------
        >>> cvrarray.Stored(path, device="cpu").matvec(np.ones(96))[:4]
        array([0., 1., 2., 3.])
        """
        return self._product("matvec", self._operand(x, 1, self.shape[1]), out)

    def matmat(self, x: Any, out: Any = None) -> Any:
        """``A @ X`` for a dense X (n_cols, k): (n_rows, k). As :meth:`matvec` otherwise.

        Examples
        --------
        >>> cvrarray.Stored(path, device="cpu").matmat(np.ones((96, 2)))[2]
        array([2., 2.])
        """
        return self._product("matmat", self._operand(x, 2, self.shape[1]), out)

    def rmatvec(self, x: Any) -> Any:
        """``A.H @ x`` for a vector (n_rows,): (n_cols,). Panels add up in their order, so the bits are always the same.

        As :meth:`matvec` otherwise.

        Examples
        --------
        >>> cvrarray.Stored(path, device="cpu").rmatvec(np.ones(96))[:4]
        array([0., 1., 2., 3.])
        """
        return self._adjoint(self._operand(x, 1, self.shape[0]))

    def rmatmat(self, x: Any) -> Any:
        """``A.H @ X`` for a dense matrix X (n_rows, k): (n_cols, k). As :meth:`rmatvec` otherwise.

        Examples
        --------
        >>> cvrarray.Stored(path, device="cpu").rmatmat(np.ones((96, 2)))[2]
        array([2., 2.])
        """
        return self._adjoint(self._operand(x, 2, self.shape[0]))

    def __matmul__(self, other: Any) -> Any:
        return self.matmat(other) if np.ndim(other) == 2 else self.matvec(other)

    def __rmatmul__(self, other: Any) -> Any:
        other = self._on_device(other)
        if other.ndim not in (1, 2) or other.shape[-1] != self.shape[0]:
            raise ValueError(f"x must be a vector of length {self.shape[0]} for x @ A; got shape {other.shape}")
        return self._transposed(other) if other.ndim == 1 else self._transposed(other.T).T

    def _product(self, kind: str, x: Any, out: Any) -> Any:
        shape = (self.shape[0], *x.shape[1:])
        with self._target.use():
            dtype = np.result_type(self.dtype, x.dtype)
            if dtype != np.bool_:
                x = self._target.xp.ascontiguousarray(x, dtype)  # once, not once a panel
            if out is None:
                out = self._target.xp.empty(shape, dtype)
            elif self._target.may_share_memory(x, products.checked_out(self, out, shape, dtype)):
                x = x.copy()  # the first panels' results would be what the others multiply
            with closing(self._panels()) as panels:
                for first, last, panel in panels:
                    getattr(panel, kind)(x, out=out[first:last])
        return out

    def _adjoint(self, x: Any) -> Any:
        return self._transposed(x.conj()).conj() if self.dtype.kind == "c" else self._transposed(x)

    def _transposed(self, x: Any) -> Any:
        """``A.T @ x`` for a vector or a matrix on the device."""
        with self._target.use(), closing(self._panels()) as panels:
            dtype = np.result_type(self.dtype, x.dtype)
            y = self._target.xp.zeros((self.shape[1], *x.shape[1:]), coercion.wide(dtype))
            x = x.astype(y.dtype) if y.dtype != dtype else x  # float16: panels add up in float32
            for first, last, panel in panels:
                once = TransposedArray.once(panel)
                if y.dtype == np.bool_:
                    y |= once @ x[first:last]
                else:
                    (once.matvec if x.ndim == 1 else once.matmat)(x[first:last], out=y, beta=1)
        return coercion.narrowed(y, dtype)

    def _operand(self, x: Any, ndim: int, n: int) -> Any:
        """`x` on the device, of `ndim` dimensions and n rows. A column is a vector too: linear operators take both."""
        x = self._on_device(x)
        if ndim == 1 and x.ndim == 2 and x.shape[1] == 1:
            x = x.reshape(-1)
        if x.ndim != ndim or x.shape[0] != n:
            what = "a vector of length" if ndim == 1 else "a matrix with rows"
            raise ValueError(f"x must be {what} {n} for a store of shape {self.shape}; got shape {x.shape}")
        return x

    def _on_device(self, x: Any) -> Any:
        """`x` as a numeric array on the store's device, or a TypeError that names the remedy."""
        xp = self._target.xp
        if not isinstance(x, xp.ndarray) and (
            self._target.kind == "cuda" or coercion.package(x) == "cupy" or hasattr(x, "__cuda_array_interface__")
        ):
            raise TypeError(
                f"x must be on the store's device, {self._target}; got {type(x).__name__}. "
                f"Use {xp.__name__}.asarray(x), or Stored(..., device=)"
            )
        return products.operand(self, x, "x")

    # ------------------------------------------------------------------------------------------------ the stream

    def _panels(self) -> Generator[tuple[int, int, SparseArray], None, None]:
        """(first row, row after the last, panel on the device) for all panels in turn; each must be used before the
        next.
        """
        with shown("streaming", self.n_panels, "panels") as update, self._lock, self._target.use():
            missing = [k for k in range(self.n_panels) if k not in self._resident]
            with closing(self._stream(missing)) as arriving:
                for k, panel in enumerate(self._manifest):
                    first, last = panel.rows
                    yield first, last, self._resident[k] if k in self._resident else next(arriving)
                    update(k + 1)
                next(arriving, None)  # the last one has been used
            if len(self._resident) == self.n_panels:
                self._staging = None  # what is on the device is never read again

    def _stream(self, missing: list[int]) -> Generator[SparseArray, None, None]:
        """The panels `missing` on the device in turn, each to be used before the next. Reading is `hold` panels ahead.

        The n-th of them goes through slot n % hold of the staging memory, which is free once panel n - hold was used.
        """
        if not missing:
            return
        staging, keep = self._staging_for(missing), self._panels_to_keep()
        reads = deque[tuple[list[Future[None]], np.ndarray]]()  # of the panels ahead: what is under way, and where to
        with ThreadPoolExecutor(self._threads, "cvrarray-read") as pool:
            try:
                for n, k in enumerate(missing):
                    for ahead in range(n + len(reads), min(n + self._hold, len(missing))):
                        reads.append(self._start_reading(pool, missing[ahead], ahead % self._hold, missing[ahead] in keep))
                    reading, content = reads.popleft()
                    for future in reading:
                        future.result()
                    panel = layout.assemble(self._manifest[k], staging.to_device(n % self._hold, content, k in keep))
                    panel = self._mapped(panel, k)
                    yield panel
                    staging.done(n % self._hold)
                    if k in keep:
                        self._resident[k] = panel
            except BaseException:
                pool.shutdown(cancel_futures=True)
                staging.drain()  # a panel may be on its way still
                raise

    def _staging_for(self, missing: list[int]) -> Any:
        """Memory for the panels on their way."""
        if self._staging is None:
            for k in missing:  # before memory for them is asked for
                layout.require_whole(self.path, k, self._manifest[k])
            largest = max(self._manifest[k].n_bytes for k in missing)
            self._staging = self._target.backend("staging").Staging(largest, min(self._hold, len(missing)))
        return self._staging

    def _panels_to_keep(self) -> set[int]:
        """The panels that stay: as many of the first ones as fit the budget."""
        ends = np.cumsum([self._held_bytes(panel) for panel in self._manifest], dtype=np.int64)
        if self._kept_bytes is None:
            free, total = self._target.backend("staging").free_memory(), int(ends[-1])
            self._kept_bytes = max(0, free // 2 - self._hold * self.panel_bytes) if free // 2 < total else total
        return set(range(int(np.searchsorted(ends, self._kept_bytes, side="right"))))

    def _start_reading(self, pool: ThreadPoolExecutor, k: int, slot: int, keep: bool) -> tuple[list[Future[None]], np.ndarray]:
        """Have panel `k` read and verified by the pool: what is under way, and where to."""
        panel = self._manifest[k]
        content = self._staging.host(slot, panel.n_bytes, keep)
        reading = [
            pool.submit(layout.read_piece, self.path, k, panel, i, content, self._verify) for i in range(len(panel.pieces))
        ]
        if self._verify:
            reading.append(pool.submit(_check_when_read, list(reading), self.path, k, panel, content))
        return reading, content


def manifest(path: str, incomplete: bool) -> tuple[layout.Root, list[layout.Panel]]:
    """What all panels of a store share, and the manifest of each; of an `incomplete` one, those without a gap."""
    try:
        root = layout.read_root(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "there is no store; write one with cvrarray.to_store", error.filename) from None
    if not root.complete and not incomplete:
        raise ValueError(
            f"{path} must be complete; it is still being written, or its writer was stopped. Go on with "
            "to_store(..., resume=True), or open the rows so far with incomplete=True"
        )
    panels: list[layout.Panel] = []
    for k in range(len(root.rows) - 1 if root.format is not None else 0):
        try:
            panels.append(layout.read_manifest(path, k, root))
        except FileNotFoundError:
            if root.complete:
                raise
            break
    if not panels:
        raise ValueError(f"{path} must have a panel to be opened; it has none yet")
    return root, panels


def load(path: str, k: int, panel: layout.Panel, device: devices.Device, verify: bool = True) -> SparseArray:
    """Panel `k` of the store at `path`, on `device`: one read, and at most one copy."""
    layout.require_whole(path, k, panel)
    content = memory.empty(panel.n_bytes, np.uint8)
    for i in range(len(panel.pieces)):
        layout.read_piece(path, k, panel, i, content, verify)
    if verify:
        check(path, k, panel, content)
    return layout.assemble(panel, devices.move(content, device))


#: What tells the panels apart whose invariants were found to hold in this process: a few bytes for each.
_CHECKED: set[int] = set()


def check(path: str, k: int, panel: layout.Panel, content: np.ndarray) -> None:
    """Verify every invariant of the tables of panel `k`, unless that was done before for the same file and manifest.

    Checksums are compared whenever a panel is read, so it is what it was then; but a checksum that fits says nothing of
    who wrote it, and products trust the tables.

    Raises
    ------
    ValueError
        Names the panel and the first invariant that does not hold.
    """
    identity = _identity(path, k, panel)
    if identity in _CHECKED:
        return
    try:
        layout.assemble(panel, content).check()
    except ValueError as error:
        raise ValueError(f"panel {k} of {path}: {error}") from error
    _CHECKED.add(identity)


def _identity(path: str, k: int, panel: layout.Panel) -> int:
    """A number that tells a panel's file and manifest from every other: that of a file which is written again is
    another.
    """
    status = layout.require_whole(path, k, panel)
    return hash((repr(panel), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


def _check_when_read(reading: list[Future[None]], *what: Any) -> None:
    """:func:`check` of a panel whose pieces are being read."""
    for future in reading:
        future.result()
    check(*what)


def _reopen(
    path: str,
    store: str,
    device: str,
    hold: int,
    budget: Any,
    verify: bool,
    incomplete: bool,
    functions: Any = (),
    threads: int | None = None,
) -> Stored:
    """A `Stored` that was pickled; ValueError where another store has taken its place."""
    how: dict[str, Any] = {"hold": hold, "budget": budget, "verify": verify, "threads": threads, "incomplete": incomplete}
    stored = Stored(path, device=device, **how)
    if stored._root.id != store:
        raise ValueError(f"{path} must be the store {store}, which was pickled; it is {stored._root.id}. Open it anew")
    return functools.reduce(Stored._with, functions, stored)
