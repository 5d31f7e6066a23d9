"""Checks that several test files share, and the ways in which an array is built for them."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import oracle
import pytest
from scipy.sparse import csr_array

import cvrarray
from cvrarray.core import devices


class Build(NamedTuple):
    """A format with the parameters of one conversion."""

    format: str
    keywords: dict[str, Any]

    def __call__(self, obj: Any, device: str | None = None):
        cls = {"cvr": cvrarray.CVRArray, "bbcsr": cvrarray.BBCSRArray}[self.format]
        return cls(obj, device=device, **self.keywords)

    def __str__(self) -> str:
        return "-".join([self.format, *(f"{name}={value}" for name, value in self.keywords.items())])


def cvr(n_lanes: int | None = None, n_chunks: int | None = None, split: str = "rows") -> Build:
    return Build("cvr", {"n_lanes": n_lanes, "n_chunks": n_chunks, "split": split})


def bbcsr(block_size: int) -> Build:
    return Build("bbcsr", {"block_size": block_size})


CVR = [
    Build("cvr", {}),
    cvr(4, 2, "nnz"),  # the slides'
    cvr(4, 5, "rows"),
    cvr(1, 3, "nnz"),  # one lane: nothing is ever stolen
    cvr(3, 1, "rows"),  # one chunk: nothing is ever cut
    cvr(8, 1000, "nnz"),  # about one nonzero a chunk; clipped to nnz
    cvr(24, 5, "even"),
    cvr(32, 4, "nnz"),
    cvr(32, 7, "rows"),
]
BBCSR = [bbcsr(block_size) for block_size in (1, 2, 3, 6, 7, 32)]
BUILDS = CVR + BBCSR
#: What `precision` may be on a device.
PRECISIONS = {"cpu": (None,), "cuda:0": (None, "mixed")}
DEFAULTS = [Build("cvr", {}), Build("bbcsr", {})]
ONE_OF_EACH = [cvr(32, 7, "rows"), bbcsr(6)]
#: Of every kind one: default, few lanes, one, all, rows cut or not; blocks of one, of an own kernel, of any size.
DIFFERENT = [Build("cvr", {}), cvr(4, 2, "nnz"), cvr(1, 3, "nnz"), cvr(32, 4, "nnz"), *map(bbcsr, (1, 3, 6, 32))]
TYPICAL = [cvr(4, 5, "nnz"), cvr(32, 7, "rows"), bbcsr(1), bbcsr(6)]


def in_turn(names: str, *axes: Iterable[Any], times: int = 1) -> pytest.MarkDecorator:
    """Parametrises by as many cases as the longest axis has values: each of them once, with values of the others in turn;
    `times` over, with other ones each time. Plain tuples in an axis are values of several names.
    """
    values = [list(axis) for axis in axes]
    turns = itertools.product(range(times), range(max(map(len, values))))
    return _parametrized(names, [[axis[(k + turn * i) % len(axis)] for i, axis in enumerate(values)] for turn, k in turns])


def in_pairs(names: str, first: Iterable[Any], second: Iterable[Any], *others: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrises by every pair of values of two axes, with values of the others in turn."""
    rest = [list(axis) for axis in others]
    pairs = itertools.product(enumerate(first), enumerate(second))
    return _parametrized(names, [[a, b, *(axis[(i + j) % len(axis)] for axis in rest)] for (i, a), (j, b) in pairs])


def _parametrized(names: str, cases: list[list[Any]]) -> pytest.MarkDecorator:
    flat = [[value for part in case for value in (part if type(part) is tuple else (part,))] for case in cases]
    ids = ["-".join(str(getattr(value, "__name__", value)) for value in case) for case in flat]
    return pytest.mark.parametrize(names, flat, ids=ids)


def at_home(dtypes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Each dtype, or tuple of the values' dtype and others, behind the build that it is tried with in every test: so tests
    share compiled code.
    """
    cases = [dtype if type(dtype) is tuple else (dtype,) for dtype in dtypes]
    return [(TYPICAL[np.dtype(case[0]).num % len(TYPICAL)], *case) for case in cases]


def put(array: Any, device: str) -> Any:
    """`array` on `device`, as `cupy.asarray` or the user's own NumPy array."""
    return devices.move(array, devices.parse(device))


def get(array: Any) -> np.ndarray:
    """`array` on the host."""
    return devices.move(array, devices.CPU)


def assert_product(y: Any, csr: csr_array, x: np.ndarray, alpha=1, beta=0, before: np.ndarray | None = None) -> None:
    """`y` is ``alpha * csr @ x + beta * before``: dtype, values in the oracle's bound, nan and inf in their rows.

    Of a matrix x every column is what the oracle has for a vector.
    """
    y = get(y)
    assert y.shape == (csr.shape[0], *x.shape[1:])
    assert y.dtype == np.result_type(csr.dtype, x.dtype)
    if x.ndim == 2:
        for k in range(x.shape[1]):
            assert_product(y[:, k], csr, x[:, k], alpha, beta, None if before is None else before[:, k])
        return
    expected, bound = oracle.product(csr, x, alpha, beta, before)
    if y.dtype.kind in "biu":
        np.testing.assert_array_equal(y, expected)
        return
    finite = np.isfinite(expected)
    if y.dtype.kind == "c":  # which part of a complex product turns nan depends on the formula: only the row counts
        np.testing.assert_array_equal(np.isfinite(y), finite)
    else:
        np.testing.assert_array_equal(y[~finite], expected[~finite].astype(y.dtype))
    error = abs(y[finite].astype(expected.dtype) - expected[finite])
    worst = np.argmax(error - bound[finite]) if error.size else 0
    assert (error <= bound[finite]).all(), (
        f"row {np.flatnonzero(finite)[worst]}: {y[finite][worst]} instead of {expected[finite][worst]}, "
        f"off by {error[worst]:.3g} where {bound[finite][worst]:.3g} is allowed"
    )


def assert_products(A: Any, csr: csr_array, dtype: Any, columns: tuple[int, ...] = ()) -> None:
    """A product of `dtype`, with `columns` or a vector, with scales, and with infinities in x that no row meets: within the
    bounds, the same bits each time.
    """
    x = (4 * np.random.default_rng(5).standard_normal((csr.shape[1], *columns))).astype(dtype)
    if x.dtype.kind in "fc":
        x[np.setdiff1d(np.arange(len(x)), csr.indices)] = np.inf
    y = np.resize(np.arange(1, 8), (csr.shape[0], *columns)).astype(dtype)
    multiply = A.matmat if columns else A.matvec
    for alpha, beta in ((1, 0), (3, 0), (2, 1)):
        found = [get(multiply(put(x, A.device), out=put(y.copy(), A.device), alpha=alpha, beta=beta)) for _ in range(3)]
        assert_same_bits(found[0], found[1])
        assert_same_bits(found[0], found[2])
        for column in np.ndindex(columns):
            of = ..., *column
            expected, bound = oracle.product(csr, np.where(np.isfinite(x[of]), x[of], 0), alpha, beta, y[of])
            assert (np.abs(found[0][of] - expected) <= bound).all()


def assert_new_values_count(A: Any, csr: csr_array, columns: tuple[int, ...] = ()) -> None:
    """Values that are replaced, in another array or in place, count in the next product, with `columns` or a vector."""
    x, data = put(np.ones((csr.shape[1], *columns)), A.device), put(csr.data, A.device)
    plain = get(A @ x)
    np.testing.assert_allclose(get(A.with_values(3 * data) @ x), 3 * plain)
    np.testing.assert_allclose(get(A.with_values(2 * data, out=A) @ x), 2 * plain)


def assert_few_values_keep_bits(
    csr: csr_array, device: str, build: Callable[..., Any] = cvrarray.CVRArray, columns: tuple[int, ...] = ()
) -> None:
    """One value, and a few, are stored once or as numbers: a product, with `columns` or a vector, has the bits that it has
    where they are not.
    """
    csr, x = csr.copy(), put(np.random.default_rng(5).standard_normal((csr.shape[1], *columns)), device)
    for n_values in (1, 3):
        csr.data[:] = np.arange(csr.nnz) % n_values + 0.1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cvrarray.gpu.distinct.LEAST_BYTES", 1)
            A = build(csr, device=device)
        assert A._tables.distinct is not None
        assert_same_bits(A @ x, build(csr, device=device, values="plain") @ x)


def take_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix without near columns is for segments, of 4 KB."""
    from cvrarray.gpu import segments

    for name, value in (("LEAST_NONZEROS", 1), ("LEAST_LENGTH", 0), ("WORTH_IT", 0), ("LONGEST", 100)):
        monkeypatch.setattr(segments, name, value)
    monkeypatch.setattr(segments, "shared_memory", lambda: 4096)


def autotune_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Every matrix counts as large: from that call on its product goes the last of the ways that are measured."""
    from cvrarray.gpu import plan, shared_memory

    monkeypatch.setattr(shared_memory, "LEAST_SLOTS", 1)
    for name, value in (("MEASURED_AT", call), ("SAMPLES", 1), ("CALLS", 1)):
        monkeypatch.setattr(plan, name, value)
    times = itertools.count(1)
    monkeypatch.setattr(plan, "_milliseconds", lambda call: 1 / next(times))  # the last candidate seems the fastest


def captured(work: Callable[[], object]) -> Any:
    """The CUDA graph of `work`, captured as PyTorch does: on a stream of its own, in CUDA's global mode. CuPy's pool is empty,
    so that what takes memory must ask CUDA for it.
    """
    import cupy

    cupy.cuda.Device().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        try:
            work()
        finally:
            graph = stream.end_capture()
    return graph


def in_threads(work: Callable[..., object], *arguments: Iterable[Any]) -> None:
    """Call `work` as ``map`` does, each call in a thread of its own, until all have returned."""
    threads = [threading.Thread(target=work, args=of) for of in zip(*arguments, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def assert_graph_multiplies_again(A: Any, change: Callable[[], object] = lambda: None, columns: tuple[int, ...] = ()) -> None:
    """``A @ x`` that is captured runs again with another x, and after `change`; X has `columns`, if any."""
    import cupy

    x, y = cupy.ones((A.shape[1], *columns), A.dtype), cupy.empty((A.shape[0], *columns), A.dtype)
    multiply = A.matmat if columns else A.matvec
    multiply(x, out=y)
    graph = captured(lambda: multiply(x, out=y))
    x.fill(2)
    change()
    for _ in range(3):
        y.fill(np.nan if y.dtype.kind in "fc" else 7)
        graph.launch()
        assert_same_bits(y, multiply(x))


def assert_one_layout_a_structure(A: Any, monkeypatch: Any, module: Any, count: int) -> list[Any]:
    """Products with `A` and other values make `count` of the module's layouts; the list to which later ones are added."""
    made, layout = [], module.Layout
    monkeypatch.setattr(module, "Layout", lambda *of: made.append(layout(*of)) or made[-1])
    device, x = str(A.device), np.ones(A.shape[1])
    for array in (A, A.with_values(put(3 * get(A.tocsr().data), device)), A):
        for dtype in (np.float32, np.float64):
            array @ put(x.astype(dtype), device)
    assert len(made) == count
    return made


def from_csr(cls: Any, indptr: Any, indices: Any, data: Any, shape: Any, **keywords: Any) -> Any:
    """An array from the three arrays of a CSR."""
    return cls((data, indices, indptr), shape=shape, **keywords)


def assert_same_csr(found: Any, expected: csr_array) -> None:
    """Two CSR matrices agree entry by entry: shape, dtype, places (explicit zeros too), and bits of the values."""
    assert tuple(found.shape) == tuple(expected.shape)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(get(found.indptr), expected.indptr)
    np.testing.assert_array_equal(get(found.indices), expected.indices)
    assert_same_bits(found.data, expected.data)


def assert_same_bits(found: Any, expected: Any) -> None:
    """Two arrays agree in shape, dtype and every bit, so that -0.0 is not 0.0 and a nan is itself."""
    found, expected = np.ascontiguousarray(get(found)), np.ascontiguousarray(get(expected))
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


def assert_same_tables(found: Any, expected: Any) -> None:
    """Two tables of one format agree, field by field, in every bit; they may live on different devices."""
    assert type(found) is type(expected)
    for name, ours, theirs in zip(found._fields, found, expected, strict=True):
        try:
            if hasattr(ours, "dtype") and hasattr(theirs, "dtype"):
                assert_same_bits(ours, theirs)
            else:
                assert ours == theirs
        except AssertionError as error:
            raise AssertionError(f"field {name} differs: {error}") from error


def docs_module(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    docs = Path(__file__).parent.parent / "docs"
    if str(docs) not in sys.path:  # they import one another
        sys.path.append(str(docs))
    spec = importlib.util.spec_from_file_location(name, docs / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for a condition; an AssertionError if it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def npy(header: str, values: bytes = b"", version: bytes = b"\x01\0") -> bytes:
    """A .npy file of this header, whatever it says."""
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode() + values
