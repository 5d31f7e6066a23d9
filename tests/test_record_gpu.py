"""The run of ``make bench-gpu``: peers' tables and arguments, what is checked before it is timed, page and plots.

No GPU is needed but for the last tests: cuSPARSE is played by :class:`Library`, which knows the bindings' signatures,
finds arrays by their pointers, and multiplies what it was told of.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
import scipy.sparse

import cvrarray
from asv_bench.record import gpu as record
from asv_bench.record import gpu_page, machine
from cvrarray import generate
from cvrarray.cli import bench
from cvrarray.cli import gpu_peers as peers
from cvrarray.core import devices

SIGNATURES = {  # of nvmath.bindings.cusparse
    "set_stream": "handle stream_id",
    "create_csr": "rows cols nnz csr_row_offsets csr_col_ind csr_values csr_row_offsets_type csr_col_ind_type "
    "idx_base value_type",
    "create_sliced_ell": "rows cols nnz sell_values_size slice_size sell_slice_offsets sell_col_ind sell_values "
    "sell_slice_offsets_type sell_col_ind_type idx_base value_type",
    "create_bsr": "brows bcols bnnz row_block_size col_block_size bsr_row_offsets bsr_col_ind bsr_values "
    "bsr_row_offsets_type bsr_col_ind_type idx_base value_type order",
    "create_dn_vec": "size values value_type",
    "create_dn_mat": "rows cols ld values value_type order",
    "create_blocked_ell": "rows cols ell_block_size ell_cols ell_col_ind ell_value ell_idx_type idx_base value_type",
    "create_mat_descr": "",
    "destroy_sp_mat": "sp_mat_descr",
    "destroy_dn_vec": "dn_vec_descr",
    "destroy_dn_mat": "dn_mat_descr",
    "destroy_mat_descr": "descr_a",
    "sp_mv_buffer_size": "handle op_a alpha mat_a vec_x beta vec_y compute_type alg",
    "sp_mv_preprocess": "handle op_a alpha mat_a vec_x beta vec_y compute_type alg external_buffer",
    "sp_mv": "handle op_a alpha mat_a vec_x beta vec_y compute_type alg external_buffer",
    "sp_mm_buffer_size": "handle op_a op_b alpha mat_a mat_b beta mat_c compute_type alg",
    "sp_mm_preprocess": "handle op_a op_b alpha mat_a mat_b beta mat_c compute_type alg external_buffer",
    "sp_mm": "handle op_a op_b alpha mat_a mat_b beta mat_c compute_type alg external_buffer",
    "sbsrmv": "handle dir_a trans_a mb nb nnzb alpha descr_a bsr_sorted_val_a bsr_sorted_row_ptr_a bsr_sorted_col_ind_a "
    "block_dim x beta y",
    "get_version": "handle",
    "sp_mv_op_buffer_size": "handle op_a mat_a vec_x vec_y vec_z compute_type",
    "sp_mv_op_create_descr": "handle op_a mat_a vec_x vec_y vec_z compute_type buffer",
    "sp_mv_op_create_plan": "handle desc code code_size",
    "sp_mv_op": "handle plan alpha beta vec_x vec_y vec_z",
    "sp_mv_op_destroy_descr": "desc",
    "sp_mv_op_destroy_plan": "plan",
}
SIGNATURES["dbsrmv"] = SIGNATURES["sbsrmv"]


class Refused(Exception):
    """The library's error."""


class Library:
    """What the peers use of nvmath.bindings.cusparse, on arrays of NumPy."""

    Operation = SimpleNamespace(NON_TRANSPOSE=0)
    IndexType = SimpleNamespace(INDEX_32I=2)
    IndexBase = SimpleNamespace(ZERO=0)
    Order = SimpleNamespace(COL=1, ROW=2)
    Direction = SimpleNamespace(ROW=0)
    SpMVAlg = {"CSR_ALG1": 2, "CSR_ALG2": 3, "SELL_ALG1": 5, "BSR_ALG1": 6}  # noqa: RUF012
    SpMMAlg = {"CSR_ALG1": 4, "CSR_ALG2": 6, "CSR_ALG3": 12, "BLOCKED_ELL_ALG1": 13, "BSR_ALG1": 14}  # noqa: RUF012
    cuSPARSEError = Refused

    def __init__(self, version=12603, refuses=()):
        self.version, self.refuses = version, refuses
        self.arrays, self.alive, self.called, self.algorithms = {}, {}, [], []

    def on_device(self, array):
        """`array` with the attributes of CuPy's that peers read."""
        array = np.asarray(array)
        assert array.flags.c_contiguous or array.flags.f_contiguous
        self.arrays[array.ctypes.data] = array
        return SimpleNamespace(
            data=SimpleNamespace(ptr=array.ctypes.data),
            size=array.size,
            shape=array.shape,
            dtype=array.dtype,
            device=SimpleNamespace(id=0),
            host=array,
        )

    def __getattr__(self, name):
        if name not in SIGNATURES:
            raise AttributeError(name)
        names = SIGNATURES[name].split()

        def call(*arguments):
            assert len(arguments) == len(names), name
            assert all(isinstance(argument, int) for argument in arguments), (name, arguments)
            self.called.append(name)
            given = dict(zip(names, arguments, strict=True))
            if name in self.refuses:
                raise Refused(f"{name} is not supported")
            if name.startswith("create_"):
                return self._new({"kind": name, **given})
            if name.startswith("destroy_") or "_destroy_" in name:
                del self.alive[arguments[0]]
                return None
            return getattr(self, f"_{name}", lambda **given: None)(**given)

        return call

    def _new(self, facts):
        number = 1000 + len(self.called)
        self.alive[number] = facts
        return number

    def _scalar(self, pointer, dtype):
        import ctypes

        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(np.ctypeslib.as_ctypes_type(dtype))), (1,))[0]

    def _matrix(self, number):
        facts = self.alive[number]
        indptr, indices, data = (self.arrays[pointer] for name, pointer in facts.items() if name in POINTERS)
        assert indptr.dtype == indices.dtype == np.int32
        assert data.dtype == ["float32", "float64"][facts["value_type"]]
        assert [value for name, value in facts.items() if name.endswith(("offsets_type", "col_ind_type"))] == [2, 2]
        if facts["kind"] == "create_csr":
            return scipy.sparse.csr_array((data, indices, indptr), shape=(facts["rows"], facts["cols"]))
        if facts["kind"] == "create_bsr":
            size = facts["row_block_size"]
            assert (facts["col_block_size"], facts["order"], facts["bnnz"]) == (size, 2, indices.size)
            return scipy.sparse.bsr_array((data, indices, indptr), shape=(facts["brows"] * size, facts["bcols"] * size))
        return from_sell(indptr, indices, data, (facts["rows"], facts["cols"]), facts["slice_size"])

    def _sp_mm_buffer_size(self, alg, **_):
        self.algorithms.append(alg)
        return 0

    def _sp_mm(self, mat_a, mat_b, mat_c, alpha, beta, **_):
        x, y = (self._dense(self.alive[m]) for m in (mat_b, mat_c))
        assert (self._scalar(alpha, x.dtype), self._scalar(beta, x.dtype)) == (1, 0)
        facts = self.alive[mat_a]
        y[:] = (self._blocked_ell(facts) if facts["kind"] == "create_blocked_ell" else self._matrix(mat_a)) @ x

    def _dense(self, facts):
        array = self.arrays[facts["values"]]
        assert array.shape == (facts["rows"], facts["cols"])
        in_c_order = facts["order"] == self.Order.ROW
        assert array.flags.c_contiguous if in_c_order else array.flags.f_contiguous
        assert facts["ld"] == array.shape[in_c_order]
        return array

    def _blocked_ell(self, facts):
        """Blocked ELLPACK as the definition reads it."""
        size, width = facts["ell_block_size"], facts["ell_cols"]
        col, val = self.arrays[facts["ell_col_ind"]], self.arrays[facts["ell_value"]]
        assert (col.dtype, col.shape, val.shape) == (np.int32, (facts["rows"] // size, width // size), (facts["rows"], width))
        dense = np.zeros((facts["rows"], facts["cols"]), val.dtype)
        for (block_row, k), block_col in np.ndenumerate(col):
            block = val[block_row * size : (block_row + 1) * size, k * size : (k + 1) * size]
            if block_col >= 0:
                dense[block_row * size : (block_row + 1) * size, block_col * size : (block_col + 1) * size] += block
            else:
                assert not block.any()
        return dense

    def _sp_mv_buffer_size(self, alg, **_):
        self.algorithms.append(alg)
        return 0

    def _sp_mv(self, mat_a, vec_x, vec_y, alpha, beta, **_):
        x, y = (self.arrays[self.alive[v]["values"]] for v in (vec_x, vec_y))
        assert (self._scalar(alpha, x.dtype), self._scalar(beta, x.dtype)) == (1, 0)
        y[:] = self._matrix(mat_a) @ x

    def _sbsrmv(self, mb, nb, bsr_sorted_val_a, bsr_sorted_row_ptr_a, bsr_sorted_col_ind_a, block_dim, x, y, **_):
        val, row_ptr, col = (self.arrays[p] for p in (bsr_sorted_val_a, bsr_sorted_row_ptr_a, bsr_sorted_col_ind_a))
        matrix = scipy.sparse.bsr_array((val, col, row_ptr), shape=(mb * block_dim, nb * block_dim))
        self.arrays[y][:] = matrix @ self.arrays[x]

    _dbsrmv = _sbsrmv

    def _get_version(self, handle):
        return self.version

    def _sp_mv_op_buffer_size(self, vec_y, vec_z, **_):
        assert vec_y == vec_z
        return 16

    def _sp_mv_op_create_descr(self, **given):
        return self._new({"kind": "descr", **given})

    def _sp_mv_op_create_plan(self, desc, code, code_size, **_):
        assert (code, code_size) == (0, 0)
        return self._new({"kind": "plan", **self.alive[desc]})

    def _sp_mv_op(self, plan, vec_x, vec_z, alpha, beta, **_):
        self._sp_mv(self.alive[plan]["mat_a"], vec_x, vec_z, alpha, beta)


POINTERS = (
    "csr_row_offsets csr_col_ind csr_values sell_slice_offsets sell_col_ind sell_values bsr_row_offsets bsr_col_ind bsr_values"
).split()


def from_sell(slice_ptr, col, val, shape, slice_size):
    """Sliced ELLPACK as the definition reads it, entry by entry."""
    dense = np.zeros(shape, val.dtype)
    for part in range(slice_ptr.size - 1):
        start, end = slice_ptr[part], slice_ptr[part + 1]
        for place in range(start, end):
            row = part * slice_size + (place - start) % slice_size
            if col[place] >= 0:
                dense[row, col[place]] += val[place]
            else:
                assert val[place] == 0
    return scipy.sparse.csr_array(dense)


@pytest.fixture
def library(monkeypatch):
    """Puts a Library in the place of cuSPARSE, and of CuPy what the peers use of it."""

    to_bsr, of = peers.to_bsr, peers.to_ell

    def install(**options):
        played = Library(**options)

        def to_ell(csr, size, xp):
            with monkeypatch.context() as inside:
                inside.setattr(peers, "to_bsr", to_bsr)
                return moved(of(csr.host, size, np), played)

        cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7))
        cupy = SimpleNamespace(
            cuda=cuda,
            empty=lambda size, dtype: played.on_device(np.empty(size, dtype)),
            asfortranarray=lambda array: played.on_device(np.asfortranarray(array.host)),
        )
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(peers, "bindings", lambda: played)
        monkeypatch.setattr(peers, "handle", lambda device: 5)
        monkeypatch.setattr(peers, "to_sell", lambda csr, xp, of=peers.to_sell: moved(of(csr.host, np), played))
        monkeypatch.setattr(peers, "to_bsr", lambda csr, size, xp, of=peers.to_bsr: moved(of(csr.host, size, np), played))
        monkeypatch.setattr(peers, "to_ell", to_ell)
        return played

    return install


def moved(tables, played):
    return type(tables)(*map(played.on_device, tables))


def matrix(shape=(72, 48), density=0.1, dtype=np.float64):
    rng = np.random.default_rng(4)
    return scipy.sparse.random_array(shape, density=density, format="csr", rng=rng, dtype=dtype)


def operands(played, csr, *k):
    x = np.arange(1, 1 + csr.shape[1] * int(np.prod(k))).astype(csr.dtype).reshape(csr.shape[1], *k)
    parts = {name: played.on_device(getattr(csr, name)) for name in ("indptr", "indices", "data")}
    on_device = SimpleNamespace(shape=csr.shape, nnz=csr.nnz, dtype=csr.dtype, host=csr, **parts)
    return on_device, played.on_device(x), played.on_device(np.full((csr.shape[0], *k), np.nan, csr.dtype)), csr @ x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("csr alg1", 2), ("csr alg2", 3), ("sell", 5), ("bsr 2", 6), ("bsr 3", 6), ("bsr 4", 6), ("bsr 6", 6)],
)
def test_spmv_arguments(library, name, algorithm, dtype):
    played = library()
    csr, x, y, expected = operands(played, matrix(dtype=dtype))
    run = peers.prepare(name, csr, x, y)
    assert "sp_mv" not in played.called
    assert played.algorithms == [algorithm]
    assert played.called.count("sp_mv_preprocess") == 1
    result = run()
    np.testing.assert_allclose(result.host, expected, rtol=1e-5)
    assert played.alive
    del run
    assert not played.alive  # every descriptor was destroyed, once


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("csr alg1", 4), ("csr alg2 F", 6), ("csr alg3", 12), ("bsr 3", 14), ("ell 2", 13), ("ell 4", 13)],
)
def test_spmm_arguments(library, name, algorithm, dtype):
    played = library()
    csr, x, y, expected = operands(played, matrix(density=0.5, dtype=dtype), 5)
    run = peers.prepare(name, csr, x, y, peers.MATRIX_PEERS)
    assert "sp_mm" not in played.called
    assert played.algorithms == [algorithm]
    assert played.called.count("sp_mm_preprocess") == name.startswith("csr")
    np.testing.assert_allclose(run().host, expected, rtol=1e-5)
    del run
    assert not played.alive


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bsr_of_libraries_without_a_generic_one(library, dtype):
    played = library(refuses=("sp_mv_buffer_size",))
    csr, x, y, expected = operands(played, matrix(dtype=dtype))
    run = peers.prepare("bsr 3", csr, x, y)
    np.testing.assert_allclose(run().host, expected, rtol=1e-5)
    assert played.called[-1] == ("sbsrmv" if dtype == np.float32 else "dbsrmv")


def test_preprocessing_is_csr_s_to_insist_on(library):
    played = library(refuses=("sp_mv_preprocess",))
    csr, x, y, expected = operands(played, matrix())
    np.testing.assert_allclose(peers.prepare("sell", csr, x, y)().host, expected)
    with pytest.raises(peers.LeftOut, match="Refused: sp_mv_preprocess is not supported"):
        peers.prepare("csr alg1", csr, x, y)


def test_op_by_the_bindings(library):
    played = library(version=12709)
    csr, x, y, expected = operands(played, matrix())
    run = peers.prepare("op alg2", csr, x, y)
    np.testing.assert_allclose(run().host, expected)
    del run
    assert not played.alive


@pytest.mark.parametrize(
    ("version", "name", "reason"),
    [
        (12603, "op alg2", r"cuSPARSE is 12\.6\.3; cusparseSpMVOp needs 12\.7\.3"),
        (12702, "op alg1", r"cuSPARSE is 12\.7\.2; cusparseSpMVOp needs 12\.7\.3"),
        (12710, "op alg1", r"cuSPARSE is 12\.7\.10; algorithm 1 of cusparseSpMVOp needs 12\.8\.0"),
    ],
)
def test_op_of_libraries_without_it(library, version, name, reason):
    played = library(version=version)
    with pytest.raises(peers.LeftOut, match=reason):
        peers.prepare(name, *operands(played, matrix())[:3])


@pytest.mark.parametrize("algorithm", [1, 2])
def test_op_with_an_algorithm_calls_the_library_itself(monkeypatch, algorithm):
    """From 12.8 on the bindings pass one argument too few."""
    import ctypes

    seen = []

    class Function:
        def __init__(self, name):
            self.name = name

        def __call__(self, *arguments):
            values = [kind(v).value if isinstance(v, int) else v for kind, v in zip(self.argtypes, arguments, strict=True)]
            seen.append((self.name, values))
            out = arguments[-1] if self.name.endswith("bufferSize") else arguments[1]
            out._obj.value = 4096
            return 0

    functions = SimpleNamespace(
        cusparseSpMVOp_bufferSize=Function("bufferSize"), cusparseSpMVOp_createDescr=Function("createDescr")
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name, handle: functions)
    pathfinder = SimpleNamespace(load_nvidia_dynamic_lib=lambda name: SimpleNamespace(_handle_uint=1))
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=pathfinder))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    monkeypatch.setattr(peers, "bindings", lambda: SimpleNamespace(check_status=lambda status: None))
    found = peers.op_functions(12801, algorithm)
    assert found.buffer_size(1, 0, 2, 3, 4, 5, 1) == 4096
    assert found.create_descr(1, 0, 2, 3, 4, 5, 1, 6) == 4096
    # handle, operation, A, x, y, z, type, algorithm, size; and handle, descr, operation, A, x, y, z, type, algorithm,
    # buffer
    assert seen[0] == ("bufferSize", [1, 0, 2, 3, 4, 5, 1, algorithm, seen[0][1][-1]])
    assert seen[1] == ("createDescr", [1, seen[1][1][1], 0, 2, 3, 4, 5, 1, algorithm, 6])


def test_signatures_are_the_bindings():
    cusparse = pytest.importorskip("nvmath.bindings.cusparse")
    for name, arguments in SIGNATURES.items():
        described = getattr(cusparse, name).__doc__.partition("(")[2].partition(")")[0]
        assert [word.split()[-1] for word in described.split(",") if word] == arguments.split(), name
    for algorithms in ("SpMVAlg", "SpMMAlg"):
        expected = getattr(Library, algorithms)
        assert {name: int(getattr(cusparse, algorithms)[name]) for name in expected} == expected
    assert (int(cusparse.IndexType.INDEX_32I), int(cusparse.Direction.ROW)) == (2, 0)
    assert (int(cusparse.Order.COL), int(cusparse.Order.ROW)) == (1, 2)


@pytest.mark.parametrize("shape", [(1, 1), (31, 40), (32, 40), (33, 40), (200, 7)])
def test_to_sell(shape):
    csr = matrix(shape, 0.3)
    sell = peers.to_sell(csr, np)
    assert sell.slice_ptr.size == -(-shape[0] // 32) + 1
    assert (sell.slice_ptr.dtype, sell.col.dtype, sell.val.dtype) == (np.int32, np.int32, csr.dtype)
    np.testing.assert_array_equal(from_sell(*sell, shape, 32).toarray(), csr.toarray())


@pytest.mark.parametrize("size", peers.BLOCK_SIZES)
def test_to_bsr(size):
    csr = matrix((12 * 5, 12 * 3))
    bsr = peers.to_bsr(csr, size, np)
    again = scipy.sparse.bsr_array((bsr.val, bsr.col, bsr.row_ptr), shape=csr.shape)
    np.testing.assert_array_equal(again.toarray(), csr.toarray())
    assert again.has_canonical_format
    with pytest.raises(peers.LeftOut, match=f"61 x 36 is no multiple of {size}"):
        peers.to_bsr(matrix((61, 36)), size, np)


def test_formats_that_would_be_too_large():
    with pytest.raises(peers.LeftOut, match=r"would store [\d.]+ times the bytes of CSR"):
        peers.to_bsr(scipy.sparse.csr_array((np.ones(10), (6 * np.arange(10),) * 2), shape=(60, 60)), 6, np)
    row = scipy.sparse.csr_array((np.ones(1000), (np.zeros(1000, int), np.arange(1000))), shape=(32, 1000))
    with pytest.raises(peers.LeftOut, match=r"would store 32\.0 times the bytes of CSR"):
        peers.to_sell(row, np)


def test_absent_libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvmath", None)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    peers.bindings.cache_clear()
    array = SimpleNamespace(dtype=np.dtype(np.float64), device=SimpleNamespace(id=0))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    with pytest.raises(peers.LeftOut, match=r"nvmath-python cannot be imported .*pip install 'cvrarray\[bench\]'"):
        peers.prepare("csr alg1", None, None, array)
    with pytest.raises(peers.LeftOut, match="PyTorch is not installed"):
        peers.prepare("torch", None, None, array)


def test_nvmath_is_imported_nowhere_else():
    package = record.Path(cvrarray.__file__).parent
    found = [path for root in (package, package.parent / "asv_bench") for path in root.rglob("*.py")]
    assert [path.name for path in found if "nvmath.bindings import" in path.read_text()] == ["gpu_peers.py"]


# --- what is checked before it is timed ---


@pytest.fixture
def quick(monkeypatch):
    """Spares a test the measuring of what memory can do."""
    monkeypatch.setattr(machine, "rates", lambda device: {"read": 2e10, "copy": 1e10})


def off_by_one(csr, x, y):
    def run():
        product = csr @ x
        product[-1] *= 1 + 1e-3
        return product

    return run


def absent(csr, x, y):
    raise peers.LeftOut("nobody has it")


def refuses_later(csr, x, y):
    def run():
        raise Refused("not for this one")

    return run


REGISTRY = {
    "scipy": lambda csr, x, y: lambda: csr @ x,
    "wrong": off_by_one,
    "silent": lambda csr, x, y: lambda: y,
    "absent": absent,
    "late": refuses_later,
}


def measured(cases, dtypes=("float32", "float64")):
    return record.measure_all(
        cases.items(), devices.CPU, [np.dtype(name) for name in dtypes], repeats=2, seed=1, registry=REGISTRY
    )


def test_measures_who_is_right(quick):
    report = measured({"fem3": lambda: generate.tetrahedra(6, 3), "other": lambda: matrix((300, 200))})
    assert [(case["matrix"], case["dtype"]) for case in report["results"]] == [
        (name, dtype) for name in ("fem3", "other") for dtype in ("float32", "float64")
    ]
    assert [case["generated"] for case in report["results"]] == [True, True, False, False]
    for case in report["results"]:
        runs = {run["name"]: run for run in case["runs"]}
        assert set(runs) == {"cvr", "bbcsr", "scipy", "wrong", "silent"}
        for name, run in runs.items():
            assert run["correct"] == (name not in ("wrong", "silent")), name
            assert ("seconds" in run) == run["correct"]
        assert case["left_out"] == {"absent": "nobody has it", "late": "Refused: not for this one"}
        assert gpu_page.best_peer(case)["name"] == "scipy"
        assert gpu_page.speedup(case) == runs["scipy"]["seconds"] / gpu_page.chosen(case)["seconds"]
        assert case["floor_seconds"] == pytest.approx(
            (case["nnz"] * (4 + int(case["dtype"][5:]) // 8) + 4 * (case["shape"][0] + 1)
             + int(case["dtype"][5:]) // 8 * sum(case["shape"])) / 2e10
        )  # fmt: skip
        assert not case["cold"]
    assert record.exit_code(report) == 0
    json.dumps(report, allow_nan=False)


def test_wrong_product_of_ours_is_told(quick, monkeypatch, capsys):
    def broken(csr, formats, device, build=bench.build):
        built, left_out = build(csr, formats, device)
        return {name: array * 1.5 if name == "bbcsr" else array for name, array in built.items()}, left_out

    monkeypatch.setattr(bench, "build", broken)
    report = measured({"other": lambda: matrix((300, 200))}, ["float64"])
    runs = {run["name"]: run for run in report["results"][0]["runs"]}
    assert (runs["cvr"]["correct"], runs["bbcsr"]["correct"], runs["scipy"]["correct"]) == (True, False, True)
    assert record.exit_code(report) == 1
    assert "bbcsr @ x is wrong for other in float64" in capsys.readouterr().err


@pytest.mark.parametrize("name", record.MATRICES)
def test_small_matrices(name, device):
    device = devices.parse(device)
    with device.use():
        csr = record.all_cases("small", 0, device)[name]()
    csr = scipy.sparse.csr_array(csr.get() if device.kind == "cuda" else csr)
    csr.check_format(full_check=True)
    assert csr.nnz > 1000
    lengths, widths = np.diff(csr.indptr), np.bincount(csr.indices, minlength=csr.shape[1])
    if name == "dense_row":
        assert sorted(lengths)[-2] <= 8 and lengths.max() == csr.shape[1]
    if name == "dense_column":
        assert sorted(widths)[-2] <= 8 and widths.max() == csr.shape[0]
    if name == "empty_rows":
        assert (lengths == 0).sum() == 0.9 * csr.shape[0]
    if name.startswith("fem"):
        dof = int(name[3:])
        assert lengths.max() == 15 * dof
        filled = scipy.sparse.bsr_array(csr, blocksize=(dof, dof))
        assert filled.nnz == csr.nnz


def test_gathers_are_sectors_of_x():
    dense = scipy.sparse.csr_array(np.ones((100, 64)))
    assert record.gathers(dense, np) == 64 * 8 / 32  # one group of rows: every sector once
    scattered = scipy.sparse.csr_array((np.ones(50), (np.arange(50), 4 * np.arange(50))), shape=(50, 200))
    assert record.gathers(scattered, np) == 50  # each its own sector
    assert record.gathers(scattered.astype(np.float32), np) == 25
    long = scipy.sparse.csr_array((np.ones(100_000), np.zeros(100_000, np.int32), np.arange(100_001)), shape=(100_000, 1))
    assert record.gathers(long, np) == pytest.approx(100_000 / 2048)
    assert record.gathers(scipy.sparse.csr_array((5, 5)), np) == 0


def test_select():
    cases = dict.fromkeys(("stencil27", "rmat", "rmat_22", "fem1"), 0)
    assert list(record.select(cases, None)) == list(cases)
    assert list(record.select(cases, "fem1,rmat*")) == ["rmat", "rmat_22", "fem1"]
    with pytest.raises(ValueError, match=r"--only must name matrices among stencil27, .*; got 'nothing'"):
        record.select(cases, "rmat,nothing")


def test_files_above_half_a_million_nonzeros(tmp_path, monkeypatch):
    for name, count in {"large": 500_001, "small": 500_000}.items():
        np.savez(tmp_path / f"{name}.npz", indptr=np.array([0, count]), indices=np.arange(count), shape=np.array([1, count]))
    monkeypatch.setenv("CVRARRAY_MATRICES", str(tmp_path))
    cases = record.all_cases("full", 0, devices.CPU)
    assert {name for name in cases if name.partition(" (")[0] not in record.MATRICES} == {"large"}
    assert cases["large"]().shape == (1, 500_001)


def test_matrices_that_no_time_is_left_for(report):
    def slow():
        time.sleep(0.05)

    cases = record.InTime({"one": slow, "two": slow, "three": slow}, 0.07)
    assert [(name, make()) for name, make in cases] == [("one", None), ("two", None)]
    assert cases.rest == ["three"]
    assert "No time was left for three, four." in gpu_page.page(report | {"not_measured": ["three", "four"]}, [])
    assert "No time" not in gpu_page.page(report, [])


def test_few_values_are_a_group_of_their_own():
    """Their names say which values they have, and they have these."""
    cases = record.all_cases("small", 0, devices.CPU)
    assert list(cases)[: len(record.MATRICES)] == list(record.MATRICES)
    assert (cases["rmat (one value)"]().data == 1).all()
    assert np.unique(cases["fem3 (few values)"]().data).size == generate.FEW
    assert not any("few" in name for name in record.all_cases("small", 0, devices.CPU, "one"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--device", "cpu"], "needs a GPU, with CuPy; got --device cpu"),
        (["--repeats", "0"], "--repeats must be at least 1; got 0"),
        (["--device", "tpu"], "'tpu'"),
    ],
)
def test_usage(capsys, argv, message):
    assert record.main(argv) == 2
    assert message in capsys.readouterr().err


def test_hopeless_ones_are_left_out(quick, monkeypatch):
    """Who takes many times what our choice takes would hold up all others."""
    slow = {"slow": lambda csr, x, y: lambda: csr @ x}
    contest = record._Contest(matrix((300, 200)), np.ones(200), devices.CPU, SimpleNamespace(quickest=lambda call: 1.0))
    contest.ours = 0.5 / peers.HOPELESS
    contest.add_peer("slow", np.zeros(300), slow)
    assert contest.left_out == {"slow": f"takes {2 * peers.HOPELESS} times what ours takes"}
    assert not contest.calls


# --- page and plots, from figures that nobody measured ---

MADE_UP = {
    "schema": 1,
    "date": "2001-02-03T04:05:06+00:00",
    "device": {"name": "Made-up GPU", "multiprocessors": 10, "l2_bytes": 4_000_000, "cuda": 13000, "driver": 13000},
    "versions": {"cvrarray": "0", "cusparse": "12.6.3", "system": "none"},
    "bytes_per_second": 1e12,
    "gathers_per_second": 1e11,
    "launch_seconds": 2e-6,
    "bytes_copied_per_second": 1e12,
    "repeats": 3,
    "scale": "full",
    "peers": ["csr alg1", "sell", "torch"],
    "results": [],
}


def made_up(name, dtype, ours, peer, *, cold=False, limits=(1e-4, 2e-5), correct=True):
    timed = {"correct": True, "error_over_bound": 0.1, "host_seconds": 1e-5, "quartiles": [1, 1]}
    return {
        "matrix": name,
        "generated": True,
        "shape": [10, 10],
        "nnz": 123456,
        "dtype": dtype,
        "cold": cold,
        "floor_seconds": 1e-4,
        "limits_seconds": {"HBM": limits[0], "L2": limits[1], "launch": 2e-6},
        "runs": [
            {"name": "cvr", "ours": True, "format": "cvr", "plan": "why", **timed, "seconds": ours, "correct": correct},
            {"name": "bbcsr", "ours": True, "format": "bbcsr", "block_size": 3, "plan": None, **timed, "seconds": 9e-4},
            {"name": "csr alg1", "ours": False, **timed, "seconds": peer},
            {"name": "sell", "ours": False, "correct": False, "error_over_bound": None},
        ],
        "left_out": {"torch": "PyTorch is not installed"},
    }


@pytest.fixture
def report():
    return MADE_UP | {
        "results": [
            made_up("one", "float32", 2e-4, 4e-4),
            made_up("two", "float32", 2e-4, 1e-4, cold=True, limits=(1e-6, 1e-6)),
            made_up("one", "float64", 1e-4, 1.5e-4, limits=(2e-5, 9e-5)),
        ]
    }


def test_summary(report):
    first, second = gpu_page.summary(report)
    assert (first["dtype"], first["matrices"], first["worst"], first["below_1"]) == ("float32", 2, "two", ["two"])
    assert first["geometric_mean"] == pytest.approx(1.0)
    assert first["geometric_mean_beyond_l2"] == pytest.approx(2.0)
    assert second["geometric_mean"] == pytest.approx(1.5)
    assert second["below_1"] == []


def test_choices(report):
    """The made-up choice takes 200 and 100 us where the other format takes 900; where both are right it may be the slower."""
    assert set(gpu_page.choices(report).values()) == {1.0}
    slower = made_up("three", "float32", 9.8e-4, 1e-3)
    assert gpu_page.choices({"results": [slower]}) == {"three, float32": pytest.approx(9.8 / 9)}
    assert gpu_page.choices({"results": [made_up("four", "float32", 1, 1, correct=False)]}) == {}
    page = gpu_page.page(report | {"results": [slower, made_up("five", "float64", 1e-4, 1e-4)]}, [])
    assert "Of 2 cases" in page and "other in 1, and more than 10% in 0; 1.09x at worst (three, float32)" in page


@pytest.mark.slow
def test_page(report, tmp_path):
    pytest.importorskip("matplotlib")
    assert gpu_page.write(report, tmp_path) == []
    assert json.loads((tmp_path / "gpu.json").read_text()) == report
    page = (tmp_path / "gpu.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    assert ["one", "123,456", "100", "cvr", "200", "10.0", "2.00", "csr alg1", "400", "2.00", "HBM", "100", "50%"] in lines
    assert [
        "two (cold)",
        "123,456",
        "100",
        "cvr",
        "200",
        "10.0",
        "2.00",
        "csr alg1",
        "100",
        "0.50",
        "launch",
        "2.00",
        "1%",
    ] in lines
    assert ["one", "123,456", "100", "cvr", "100", "10.0", "1.00", "csr alg1", "150", "1.50", "L2", "90.0", "90%"] in lines
    assert ["one", "200*", "900", "400", "WRONG", "-"] in lines
    assert "* torch: PyTorch is not installed (3)" in page
    assert "cuSPARSE 12.6.3" in page and "L2 of 4.00 MB" in page
    for kind in gpu_page.PLOTS:
        assert f"![gpu.{kind}.svg](gpu.{kind}.svg)" in page
        drawn = (tmp_path / f"gpu.{kind}.svg").read_bytes()
        assert drawn.startswith(b"<?xml") and b"two (cold)" in drawn
        gpu_page.plot(report, kind, tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_bytes() == drawn


@pytest.mark.slow
def test_page_of_matrices_that_nothing_was_fitted_to(report, tmp_path):
    pytest.importorskip("matplotlib")
    assert gpu_page.write(report | {"families": "11"}, tmp_path) == []
    page = (tmp_path / "gpu-unseen.md").read_text()
    assert "`make bench-unseen`" in page and "with the seed 11" in page and "Since then" in page
    assert "Since then" not in gpu_page.page(report | {"families": str(record.families.UNSEEN)}, [])
    assert "![gpu-unseen.speedup.svg](gpu-unseen.speedup.svg)" in page


def test_drawn_matrices_have_random_values():
    csr = record._drawn("band.11", 0, devices.CPU)
    assert np.unique(csr.data).size > 0.9 * csr.nnz
    makefile = (record.Path(record.__file__).parents[2] / "Makefile").read_text()
    assert f"--families {record.families.UNSEEN} " in makefile  # to which nothing is fitted


def test_page_without_matplotlib(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (note,) = gpu_page.write(report, tmp_path)
    assert "pip install 'cvrarray[plot]'" in note
    assert "![" not in (tmp_path / "gpu.md").read_text()


def test_page_of_a_wrong_product(tmp_path):
    report = MADE_UP | {"results": [made_up("one", "float32", 2e-4, 4e-4, correct=False)]}
    assert gpu_page.chosen(report["results"][0]) is None
    assert "WRONG" in gpu_page.page(report, [])
    assert gpu_page.summary(report)[0]["geometric_mean"] is None
    pytest.importorskip("matplotlib")
    assert gpu_page.write(report, tmp_path) == []


# --- on a GPU ---


def test_reference_on_the_gpu(gpu):
    device = devices.parse(gpu)
    for dtype in ("float32", "float64"):
        csr = matrix((500, 300), 0.2, np.float64).astype(dtype)
        x = np.arange(300).astype(dtype)
        expected, bound = oracle.product(csr, x)
        on_gpu = record.sources.place(csr, device)
        found, allowed = record.reference(on_gpu, device.xp.asarray(x), device)
        np.testing.assert_allclose(found.get(), expected, rtol=1e-13)
        np.testing.assert_allclose(allowed.get(), bound, rtol=1e-13)


def test_run_on_the_gpu(gpu, tmp_path, capsys):
    """All of it, small: who is there is right."""
    assert record.main(["--scale", "small", "--repeats", "3", "--report", str(tmp_path), "--device", gpu]) == 0
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {case["matrix"] for case in report["results"]} >= set(record.MATRICES)
    for case in report["results"]:
        assert case["cold"] or not case["generated"]
        assert all(run["correct"] for run in case["runs"]), case["matrix"]
    assert "geometric mean" in capsys.readouterr().out
