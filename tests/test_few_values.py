"""Values in few bytes: every bit comes back, and every product has the bits that it has with plain values."""

from __future__ import annotations

import json
import pickle
import re
import zipfile

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import assert_same_bits, assert_same_csr, assert_same_tables, bbcsr, cvr, in_turn

import cvrarray
from cvrarray.array import encoding
from cvrarray.array.transposed import TransposedArray
from cvrarray.core.distinct import arranged
from cvrarray.cpu import distinct
from cvrarray.files import cvra

BUILDS = [cvr(4, 5, "nnz"), cvr(32, 7, "rows"), bbcsr(1), bbcsr(6)]
STRUCTURES = [
    "shape_without_entries_0_5", "one_by_one", "hypersparse", "two_long_rows_share_a_chunk", "rows_of_mixed_length",
    "power_law", "blocks_with_holes", "perfect_blocks_6", "blocks_over_the_edge", "narrow_and_wide_tiles",
]  # fmt: skip


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Store values in few bytes however few there are: in what arrays do not."""
    monkeypatch.setattr(distinct, "most_values", lambda data: 256 if data.itemsize > 1 else 1)
    monkeypatch.setattr(distinct, "narrower_pays", lambda data: True)


def of_bits(*bits: int) -> np.ndarray:
    return np.array(bits, np.uint64).view(np.float64)


NANS = of_bits(0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF8000000000123, 0xFFFFFFFFFFFFFFFF)
RNG = np.random.default_rng(3)
MANY = RNG.permutation(np.arange(1, 400)) * np.pi
#: Values, and how many a table of them has; None: they stay as they are, 0: in fewer bytes.
VALUES: dict[str, tuple[np.ndarray, int | None]] = {
    "one": (np.array([2.0]), 1),
    "zero": (np.array([0.0]), 1),
    "negative": (np.array([-1.0]), 2),
    "negative zero": (np.array([-0.0]), 2),
    "infinite": (np.array([np.inf]), 2),
    "nan": (NANS[:1], 2),
    "signed zeros": (np.array([0.0, -0.0, 1.0]), 3),
    "nans": (np.concatenate([NANS, [np.inf, -np.inf, 3.0]]), 9),
    "denormals": (of_bits(1, 2, 0x8000000000000001, 0x000FFFFFFFFFFFFF), 5),
    "254": (-MANY[:254], 255),
    "255": (-MANY[:255], 256),
    "255 and 0": (np.append(-MANY[:255], 0.0), 256),
    "256": (np.append(-MANY[:255], 5.0), 256),
    "256 negative": (-MANY[:256], None),
    "256 and 0": (np.append(MANY[:256], 0.0), None),
    "257": (MANY[:257], None),
    "257 of float32": (np.concatenate([np.float32(MANY[:254]), [-0.0, np.inf, NANS[0]]]).astype(float), 0),
    "257 with a nan of its own": (np.append(np.float32(MANY[:256]).astype(float), NANS[3]), None),
}


def with_values(name: str, values: np.ndarray) -> scipy.sparse.csr_array:
    csr = zoo.integers(name, values.dtype)
    csr.data = values[(np.arange(csr.nnz) * 7919 + 3) % values.size]
    return csr


def both(build, csr):
    """The array with values in few bytes, and the plain one."""
    cls = {"cvr": cvrarray.CVRArray, "bbcsr": cvrarray.BBCSRArray}[build.format]
    return cls(csr, device="cpu", **build.keywords), cls(csr, device="cpu", values="plain", **build.keywords)


def table_of(A):
    return encoding.table(A._tables)


@pytest.mark.parametrize("build", [BUILDS[1], BUILDS[3]], ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_and_multiply(name, build):
    """All values in one matrix, by every way to read them; x holds infinities, which pads and holes must not meet."""
    values, size = VALUES[name]
    rng = np.random.default_rng(1)
    csr = scipy.sparse.random_array((90, 70), density=0.4, format="csr", rng=rng)
    csr.data = np.concatenate([values, rng.choice(values, csr.nnz - values.size)])
    A, B = both(build, csr)
    assert (None if table_of(A) is None else table_of(A).size) == size
    A.check()
    assert_same_csr(A.to_scipy(), csr)
    assert_same_bits(encoding.plain(A), B._values(B._tables))
    assert_same_bits(A.diagonal(3), B.diagonal(3))
    assert_same_bits(A[7:33].to_scipy().data, B[7:33].to_scipy().data)
    x = rng.standard_normal(70)
    with np.errstate(all="ignore"):
        assert_same_bits(A @ x, B @ x)
        x[:60:7] = np.inf
        assert_same_bits(np.nan_to_num(A @ x), np.nan_to_num(B @ x))


@in_turn("build, name", BUILDS[1::2], ["one", "256"])
def test_products_have_the_bits_of_plain_values(build, name):
    for structure in STRUCTURES:
        csr = with_values(structure, VALUES[name][0])
        A, B = both(build, csr)
        A.check()
        rng = np.random.default_rng(2)
        x, z = rng.standard_normal(csr.shape[1]), rng.standard_normal(csr.shape[0])
        with np.errstate(all="ignore"):
            # of numbers in float32 test_every_dtype has products
            for dtype in (np.float64, np.float32) if name in ("one", "257 of float32") else (np.float64,):
                assert_same_bits(A @ x.astype(dtype), B @ x.astype(dtype))
            if build in BUILDS[1::2]:  # each product compiles kernels of its own
                assert_same_bits(A @ np.stack([x, 2 * x, -x], axis=1), B @ np.stack([x, 2 * x, -x], axis=1))
                assert_same_bits(A.T @ z, B.T @ z)
                assert_same_bits(TransposedArray.once(A) @ z, TransposedArray.once(B) @ z)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "int64", "bool"],
)
def test_every_dtype(dtype):
    build = bbcsr(1) if dtype in ("complex128", "int16", "float16") else cvr(32, 7, "rows")
    for values in ([1], [1, 0, 3]):
        values = np.array(values) * (1 + 2j) if dtype.startswith("complex") else np.array(values)
        csr = with_values("rows_of_mixed_length", values.astype(np.float32 if dtype == "float16" else dtype))
        A, B = both(build, csr)
        A, B = (A.astype(dtype), B.astype(dtype)) if dtype == "float16" else (A, B)
        assert (table_of(A) is None) == (dtype == "bool" and values.size > 1)
        x = np.arange(csr.shape[1]).astype("float64" if dtype == "int16" else dtype)
        assert_same_bits(A @ x, B @ x)
        assert_same_bits(A.tocoo().data if dtype != "float16" else A.data, B.tocoo().data if dtype != "float16" else B.data)


def test_numbers_of_complex_values_are_of_both_parts():
    """-0 in one part alone makes a value of its own, and none that pads may stand for."""
    values = np.array([complex(0.0, -0.0), complex(-0.0, 0.0), complex(0.0, 0.0), complex(1.0, np.inf)])
    A, B = both(bbcsr(6), with_values("blocks_with_holes", values))
    assert_same_bits(table_of(A)[:1], np.zeros(1, complex))
    assert_same_bits(A.tocsr().data, B.tocsr().data)
    assert arranged(np.array([complex(1, -0.0)])).size == 2


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_one_value_but_for_a_few(dtype):
    """Wherever these stand; and with them it is no longer one."""
    n = distinct.ONE_FROM // 8 + 100
    data = np.full(n, 2.5, dtype)
    numbers, table = distinct.encode(data)
    assert (table.tolist(), int(numbers.max())) == ([2.5], 0)
    for place in (1, n // 2 + 1, n - 1):
        others = data.copy()
        others[place] = -1.5
        stored, table = distinct.encode(others)
        assert table is None or table.size != 1
        np.testing.assert_array_equal(stored if table is None else table[stored] if table.size else stored, others)


def test_a_value_that_the_sample_misses():
    data = np.ones(300_000)
    data[-2:] = 7.0, -0.0
    numbers, table = distinct.encode(data)
    assert_same_bits(table[numbers], data)
    data = np.where(np.arange(300_000) % 1000 == 7, np.arange(300_000), 1.0)  # 300 of them
    assert distinct.numbered(data)[1] is None


@pytest.mark.parametrize("build", [cvr(32, 7, "rows"), bbcsr(6)], ids=str)
@pytest.mark.parametrize("name", ["one", "signed zeros"])
def test_elementwise(build, name):
    """What is computed on a table alone has the bits of what is computed on all values."""
    A, B = both(build, with_values("blocks_with_holes", VALUES[name][0]))
    functions = {
        "scaled": lambda a: 2.5 * a, "negated": lambda a: -a, "absolute": abs, "compared": lambda a: a > 0.5,
        "cast": lambda a: a.astype(np.float32), "complex": lambda a: a * 1j, "sum": lambda a: a + a, "sign": np.sign,
        "difference": lambda a: a - a, "product": lambda a: a * a, "greatest": lambda a: np.maximum(a, -a),
        "nan": np.isnan, "imag": lambda a: a.imag,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for function in functions.values():
            found, expected = function(A), function(B)
            found.check()
            assert_same_csr(found.to_scipy(), expected.to_scipy())
            x = np.linspace(-1, 1, A.shape[1])
            assert_same_bits(found @ x, expected @ x)
        csr = B.to_scipy()
        for array in (A, B):  # where numbers in pads stand for a value, sums are made in another order
            np.testing.assert_allclose(np.asarray(array.sum(axis=0)), csr.sum(axis=0), rtol=1e-12, atol=1e-9)
        assert_same_bits(np.asarray(A.max(axis=1)), np.asarray(B.max(axis=1)))
    assert table_of(2.5 * A) is None or table_of(2.5 * A).dtype == A.dtype


@pytest.mark.parametrize("build", [cvr(32, 7, "rows"), bbcsr(6)], ids=str)
def test_new_values(build):
    csr = with_values("blocks_with_holes", np.array([1.0]))
    A, B = both(build, csr)
    x = np.linspace(-1, 1, A.shape[1])
    random = np.random.default_rng(0).standard_normal(csr.nnz)
    assert table_of(A.with_values(random)) is None
    assert table_of(A.with_values(np.full(csr.nnz, 3.0))).size == 1
    assert table_of(A.with_values(2 * csr)).size == 1
    assert_same_bits(A.with_values(random) @ x, B.with_values(random) @ x)
    assert_same_bits(A.with_values(csr.tocsc() * 3) @ x, (3 * B) @ x)
    assert_same_bits(A.T.with_values(random).T @ x, B.T.with_values(random).T @ x)
    y, transposed = A @ x, A.T @ np.ones(A.shape[0])
    assert A.with_values(random, out=A) is A  # from now on its values are plain
    assert table_of(A) is None
    A.check()
    assert_same_bits(A @ x, B.with_values(random) @ x)
    assert not np.array_equal(A.T @ np.ones(A.shape[0]), transposed)
    A.with_values(csr.data, out=A)
    assert_same_bits(A @ x, y)


@pytest.mark.parametrize("build", [cvr(32, 7, "rows"), bbcsr(1)], ids=str)
def test_one_below_the_other(build):
    """By tables where both have one table of values, else as plain ones."""
    csr = with_values("perfect_blocks_6", np.array([1.0, 2.0]))[:64]
    other = csr.copy()
    other.data = np.where(other.data == 1, 5.0, -0.0)
    for first, second in ((csr, csr), (csr, other)):
        stacked = np.concatenate([both(build, first)[0], both(build, second)[0]])
        stacked.check()
        assert_same_bits(stacked.tocsr().data, np.concatenate([first.data, second.data]))
    assert table_of(np.concatenate([both(build, csr)[0]] * 2)).size == 3


@pytest.mark.parametrize("build", [cvr(32, 7, "rows"), bbcsr(6)], ids=str)
@pytest.mark.parametrize("name", ["one", "signed zeros", "256", "257 of float32"])
def test_files_pickles_copies(build, name, tmp_path):
    A, B = both(build, with_values("blocks_with_holes", VALUES[name][0]))
    cvrarray.save(tmp_path / "few.cvra", A)
    cvrarray.save(tmp_path / "plain.cvra", B)
    for file, version in (("few", 2), ("plain", 1)):
        with zipfile.ZipFile(tmp_path / f"{file}.cvra") as archive:
            assert json.loads(archive.read("cvrarray.json"))["version"] == version
    x = np.linspace(-1, 1, A.shape[1])
    for other in (
        cvrarray.load(tmp_path / "few.cvra"),
        pickle.loads(pickle.dumps(A)),
        pickle.loads(pickle.dumps(A, 2)),
        A.copy(),
    ):
        other.check()
        assert table_of(other).size == table_of(A).size
        assert_same_bits(other @ x, B @ x)
    assert_same_csr(cvrarray.read(tmp_path / "few.cvra", device="cpu").to_scipy(), B.to_scipy())


def test_a_store_and_what_it_says(tmp_path):
    csr = with_values("perfect_blocks_6", np.array([1.0, 2.0]))
    cvrarray.to_store(csr, tmp_path / "few", device="cpu", chunks="4 KiB")
    stored = cvrarray.Stored(tmp_path / "few", device="cpu")
    assert stored.n_panels > 1
    x = np.linspace(-1, 1, csr.shape[1])
    cvrarray.to_store(csr, tmp_path / "plain", device="cpu", chunks="4 KiB", values="plain")
    plain = cvrarray.Stored(tmp_path / "plain", device="cpu")
    assert_same_bits(stored @ x, plain @ x)
    assert stored.nbytes < plain.nbytes


FORGED = {
    "number beyond the table": (lambda t: {"data": np.where(t.data == 2, 9, t.data)}, "numbers below 3"),
    "pad with a number": (lambda t: {"data": np.where(t.data == 0, 1, t.data)}, "what the conversion makes of the entries"),
    "one value and numbers": (lambda t: {"distinct": t.distinct[1:2]}, "empty where distinct has one value"),
    "infinity first": (lambda t: {"distinct": np.array([np.inf, 1, 2])}, "begins with 0, or with a finite value"),
    "too many": (lambda t: {"distinct": np.arange(257.0)}, "at most 256 values"),
    "two dimensions": (lambda t: {"distinct": t.distinct.reshape(1, -1)}, "distinct is a 1-dimensional array"),
    "wide numbers": (lambda t: {"data": t.data.astype(np.uint16)}, "data is a 1-dimensional array of uint8"),
    "narrow without need": (lambda t: {"distinct": np.empty(0, np.float32)}, "at least 1"),
}


@pytest.mark.parametrize("name", FORGED)
def test_tables_that_contradict_themselves(name):
    forge, words = FORGED[name]
    A, _ = both(bbcsr(1), with_values("rows_of_mixed_length", np.array([1.0, 2.0])))
    forged = type(A)._from_tables(A._tables._replace(**forge(A._tables)))
    with pytest.raises(ValueError, match=re.escape(words)):
        forged.check()


HEADERS = {
    "version 1": (lambda header: header.update(version=1), "version must be 2, for there is an array distinct; got 1"),
    "wide numbers": (lambda header: header["arrays"]["val"].update(dtype="<f8"), "val must be 1-dimensional of |u1"),
    "two dimensions": (lambda header: header["arrays"]["distinct"].update(shape=[1, 3]), "distinct must be 1-dimensional"),
    "another dtype": (lambda header: header["arrays"]["distinct"].update(dtype="<f4"), "distinct must be 1-dimensional of <f8"),
    "no table": (lambda header: header["arrays"].pop("distinct"), "val must be 1-dimensional of <f8"),
    "nothing narrower": (
        lambda header: (header.update(dtype="<f4"), header["arrays"]["distinct"].update(shape=[0])),
        "dtype must be one that has a narrower one",
    ),
    "a list": (lambda header: header["arrays"].update(distinct=[]), "distinct must be 1-dimensional"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_contradict_themselves(name):
    forge, words = HEADERS[name]
    A, _ = both(cvr(4, 5, "nnz"), with_values("rows_of_mixed_length", np.array([1.0, 2.0])))
    header = json.loads(json.dumps(cvra.describe(A)[0]))
    cvra.check_header(header)
    forge(header)
    with pytest.raises(ValueError, match=re.escape(words)):
        cvra.check_header(header)


def test_chunks_of_dask():
    pytest.importorskip("dask")
    csr = with_values("perfect_blocks_6", np.array([1.0, 2.0]))
    x = np.linspace(-1, 1, csr.shape[1])
    products = []
    for values in ("auto", "plain"):
        A = cvrarray.to_dask(csr, chunks=96, device="cpu", values=values)
        assert (table_of(A.blocks[0].compute()) is None) == (values == "plain")
        products.append((A @ x).compute())
    assert_same_bits(*products)


def test_what_is_said(tmp_path):
    csr = with_values("rows_of_mixed_length", np.array([1.0, 2.0]))
    A = cvrarray.asarray(csr, device="cpu")
    assert "8-bit numbers of a table of 3" in repr(A)
    assert A.plan.endswith("values: 8-bit numbers of a table of 3")
    assert "values" not in cvrarray.asarray(csr, device="cpu", values="plain").plan
    assert cvrarray.asarray(csr, device="cpu", values="plain").nbytes > A.nbytes
    assert cvrarray.statistics(csr).values == "8-bit numbers of a table of 3"
    assert cvrarray.statistics(zoo.floats("rows_of_mixed_length")).values in ("plain", "8-bit numbers of a table of 256")
    for make in (cvrarray.asarray, cvrarray.CVRArray, cvrarray.BBCSRArray):
        with pytest.raises(ValueError, match="values must be 'auto' or 'plain'; got 'few'"):
            make(csr, values="few")


def test_blocks(tmp_path):
    blocks = scipy.sparse.kron(scipy.sparse.eye_array(20), np.ones((3, 3))).tobsr((3, 3))
    A = cvrarray.asarray(blocks, device="cpu")
    assert table_of(A) is not None
    assert table_of(cvrarray.asarray(blocks, device="cpu", values="plain")) is None
    assert_same_csr(A.to_scipy(), scipy.sparse.csr_array(blocks.tocsr()))
    B = cvrarray.BBCSRArray.from_blocks([0, 1], [1, 0], np.ones((2, 3, 3)))
    assert table_of(B).size in (1, 2)
    assert table_of(cvrarray.BBCSRArray.from_blocks([0, 1], [1, 0], np.ones((2, 3, 3)), values="plain")) is None


@pytest.mark.parametrize("build", [cvr(32, 7, "rows"), bbcsr(1), bbcsr(6)], ids=str)
@pytest.mark.parametrize("name", ["one", "negative", "signed zeros", "256", "257 of float32"])
def test_from_device_to_device(build, name, gpu, tmp_path):
    """Tables move as they are, and mean the same on a GPU."""
    import cupy

    csr = with_values("blocks_with_holes", VALUES[name][0])
    A, B = both(build, csr)
    there, plain = A.to_device(gpu), B.to_device(gpu)
    assert table_of(there).size == table_of(A).size
    there.check()
    assert_same_tables(there.to_device("cpu")._tables, A._tables)
    x, z = cupy.linspace(-1, 1, csr.shape[1]), cupy.linspace(-1, 1, csr.shape[0])
    assert_same_bits(there @ x, plain @ x)
    assert_same_bits(there.T @ z, plain.T @ z)
    assert_same_bits(there @ cupy.stack([x, -x, x], axis=1), plain @ cupy.stack([x, -x, x], axis=1))
    assert_same_bits(there.data, plain.data)
    assert_same_bits(there.diagonal(2), plain.diagonal(2))
    assert_same_bits((2 * there).data, (2 * plain).data)
    assert_same_bits(there[5:40].data, plain[5:40].data)
    cvrarray.save(tmp_path / "few.cvra", there)
    loaded = cvrarray.load(tmp_path / "few.cvra", device=gpu)
    assert_same_bits(loaded @ x, plain @ x)
    assert_same_bits(pickle.loads(pickle.dumps(there)) @ x, plain @ x)
    random = cupy.asarray(np.random.default_rng(0).standard_normal(csr.nnz))
    there.with_values(random, out=there)
    assert_same_bits(there @ x, plain.with_values(random) @ x)
    for values, path in (("auto", tmp_path / "few"), ("plain", tmp_path / "plain")):
        cvrarray.to_store(csr, path, device="cpu", chunks="4 KiB", values=values)
    assert_same_bits(cvrarray.Stored(tmp_path / "few", device=gpu) @ x, cvrarray.Stored(tmp_path / "plain", device=gpu) @ x)
