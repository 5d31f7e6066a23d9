"""What is refused: each input with the exception and the words that tell the user what was wrong and what to do."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from checks import DEFAULTS, from_csr, get, put

import cvrarray
from cvrarray.array import protocol
from cvrarray.core import devices

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
CLASSES = [cvrarray.CVRArray, cvrarray.BBCSRArray]


def cases(table):
    """Parametrises a test over rows (what is wrong, ..., exception, regular expression for the message)."""
    return pytest.mark.parametrize(
        ("given", "error", "words"), [row[1:] for row in table], ids=[row[0].replace(" ", "-") for row in table]
    )


# Matrices

EYE = scipy.sparse.eye_array(4, format="csr")


def filled(cls, value):
    """2 x 2, one entry, the rest `value`."""
    return sparse.COO([[0], [1]], [1.0], shape=(2, 2), fill_value=value).asformat(cls.__name__.lower())


def foreign(module, **attributes):
    """An object whose class says that it comes from `module`."""
    return type("Foreign", (), {"__module__": module, **attributes})()


OBJECTS = [  # (what is wrong, what makes it, exception, words)
    ("fill value 7", lambda: filled(sparse.COO, 7.0), ValueError, r"fill.value 0.*7"),
    ("fill value nan", lambda: filled(sparse.COO, np.nan), ValueError, r"fill.value 0.*nan"),
    ("GCXS with fill value 7", lambda: filled(sparse.GCXS, 7.0), ValueError, r"fill.value 0.*7"),
    ("DOK with fill value 7", lambda: filled(sparse.DOK, 7.0), ValueError, r"fill.value 0.*7"),
    ("3-D COO", lambda: sparse.COO([[0], [1], [0]], [1.0], shape=(2, 2, 2)), ValueError, r"2 dim.*\(2, 2, 2\)"),
    ("1-D COO", lambda: sparse.COO([[0]], [1.0], shape=(2,)), ValueError, r"2 dim.*\(2,\)"),
    ("1-D dense", lambda: np.ones(3), ValueError, r"2 dim.*\(3,\)"),
    ("3-D dense", lambda: np.ones((2, 2, 2)), ValueError, "2 dim"),
    ("0-D dense", lambda: np.array(1.0), ValueError, "2 dim"),
    ("1-D SciPy", lambda: scipy.sparse.coo_array(np.ones(3)), ValueError, "2 dim"),
    ("object dtype", lambda: np.array([[1, None]], object), TypeError, "values must be.*object"),
    ("str dtype", lambda: np.array([["a", "b"]]), TypeError, "values must be.*U1"),
    ("datetime dtype", lambda: np.array([["2020-01-01"]], "M8[D]"), TypeError, "values must be.*datetime"),
    ("structured dtype", lambda: np.zeros((2, 2), [("a", "f8")]), TypeError, "values must be"),
    ("longdouble", lambda: EYE.astype(np.longdouble), TypeError, "values must be.*astype"),
    ("clongdouble", lambda: EYE.astype(np.clongdouble), TypeError, "values must be.*astype"),
    ("None", lambda: None, TypeError, "NoneType"),
    ("a masked array", lambda: np.ma.masked_array([[1.0, 2.0]], mask=[[1, 0]]), TypeError, "masked.*filled"),
    ("a number", lambda: 3.0, TypeError, "float"),
    ("a string", lambda: "matrix.mtx", TypeError, r"str.*cvrarray\.read\('matrix\.mtx'\)"),
    ("a dict", lambda: {(0, 0): 1.0}, TypeError, "dict"),
    ("a ragged list", lambda: [[1, 2], [3]], ValueError, "inhomogeneous"),  # NumPy's own words
    ("an unknown class", lambda: SimpleNamespace(shape=(2, 2)), TypeError, "SimpleNamespace"),
    ("a data frame", lambda: foreign("pandas.core.frame", shape=(2, 2)), TypeError, r"Use its to_numpy\(\)"),
    ("a graph", lambda: foreign("networkx.classes.graph"), TypeError, "Use networkx.to_scipy_sparse_array"),
]


@cases(OBJECTS)
def test_objects(given, error, words, device):
    for make in (*CLASSES, cvrarray.asarray):
        with pytest.raises(error, match=words):
            make(given(), device=device)


# CSR arrays

INDPTR, INDICES, DATA, SHAPE = np.array([0, 2, 3, 3]), np.array([0, 2, 1]), np.array([1.0, 2.0, 3.0]), (3, 4)


def csr(**changes):
    return {"indptr": INDPTR, "indices": INDICES, "data": DATA, "shape": SHAPE} | changes


CSR = [
    ("index too large", csr(indices=np.array([0, 4, 1])), ValueError, r"indices.*\[0, 4\).*4.*position 1"),
    ("index far too large", csr(indices=np.array([0, 2**40, 1])), ValueError, r"indices.*1099511627776"),
    ("index of 2**32", csr(indices=np.array([2**32, 2, 1])), ValueError, r"indices.*4294967296"),
    ("index negative", csr(indices=np.array([0, 2, -1])), ValueError, r"indices.*-1.*position 2"),
    ("index negative in int8", csr(indices=np.array([0, 2, -1], np.int8)), ValueError, r"indices.*-1"),
    ("index beyond int64", csr(indices=np.array([0, 2, 2**63], np.uint64)), ValueError, "indices"),
    ("index in an array without columns", csr(shape=(3, 0)), ValueError, r"indices.*\[0, 0\)"),
    ("indptr decreasing", csr(indptr=np.array([0, 3, 1, 3])), ValueError, "indptr.*decrease.*row 1 to row 2"),
    ("indptr decreasing far", csr(indptr=np.array([0, 10**12, 1, 3])), ValueError, "indptr.*decrease"),
    ("indptr negative", csr(indptr=np.array([0, -1, 1, 3])), ValueError, "indptr.*decrease"),
    ("indptr too short", csr(indptr=np.array([0, 2, 3])), ValueError, "indptr.*4.*3"),
    ("indptr too long", csr(indptr=np.array([0, 2, 3, 3, 3])), ValueError, "indptr.*4.*5"),
    ("indptr empty", csr(indptr=np.array([], int)), ValueError, "indptr.*4.*0"),
    ("indptr not from 0", csr(indptr=np.array([1, 2, 3, 3])), ValueError, "indptr.*0.*1"),
    ("indptr ends late", csr(indptr=np.array([0, 2, 3, 5])), ValueError, "indptr.*3.*5"),
    ("data too short", csr(data=DATA[:2]), ValueError, "indices and data.*3.*2"),
    ("indices too short", csr(indices=INDICES[:2]), ValueError, "indices and data.*2.*3"),
    ("float indices", csr(indices=INDICES.astype(float)), TypeError, "indices.*integers.*float64"),
    ("float indptr", csr(indptr=INDPTR.astype(float)), TypeError, "indptr.*integers.*float64"),
    ("bool indices", csr(indices=np.array([True, False, True])), TypeError, "indices.*integers.*bool"),
    ("2-D indices", csr(indices=INDICES[:, None]), ValueError, "indices.*1 dim"),
    ("2-D data", csr(data=DATA[:, None]), ValueError, "data.*1 dim"),
    ("0-D indptr", csr(indptr=np.array(0)), ValueError, "indptr.*1 dim"),
    ("object data", csr(data=DATA.astype(object)), TypeError, "values must be.*object"),
    ("str data", csr(data=DATA.astype(str)), TypeError, "values must be"),
    ("longdouble data", csr(data=DATA.astype(np.longdouble)), TypeError, "values must be.*astype"),
    ("negative rows", csr(shape=(-3, 4)), ValueError, "shape.*negative.*-3"),
    ("float shape", csr(shape=(3.0, 4)), ValueError, "shape.*integers"),
    ("3-D shape", csr(shape=(3, 4, 5)), ValueError, "shape.*two"),
    ("shape of one", csr(shape=(3,)), ValueError, "shape.*two"),
    ("shape no tuple", csr(shape=3), ValueError, "shape.*two"),
]


@cases(CSR)
def test_csr(given, error, words, device):
    """Refused where the arrays live: on a GPU by the GPU's own check."""
    shape, arrays = given["shape"], [given[name] for name in ("indptr", "indices", "data")]
    for cls in CLASSES:
        with pytest.raises(error, match=words):
            from_csr(cls, *put_where_possible(arrays, device), shape, device=device)


def put_where_possible(arrays, device):
    """CuPy holds no object, str or longdouble: then all stay on the host, to be refused all the same."""
    return [put(a, device) for a in arrays] if all(is_cupys(a.dtype) for a in arrays) else arrays


def is_cupys(dtype):
    return dtype.kind in "biuf" and dtype.itemsize <= 8


@pytest.mark.parametrize("part", ["indptr", "indices", "data"])
def test_csr_on_two_devices(part, gpu):
    parts = csr()
    parts[part] = put(parts[part], gpu)
    for cls in CLASSES:
        with pytest.raises(TypeError, match=r"one device.*(cpu.*cuda:0|cuda:0.*cpu)"):
            from_csr(cls, **parts)


@BUILD
def test_scipy_with_broken_arrays(build, device):
    """A matrix whose arrays were edited after SciPy had checked them."""
    for part, value, words in (("indices", 9, "indices.*9"), ("indices", -2, "indices.*-2"), ("indptr", 40, "indptr")):
        broken = EYE.copy()
        getattr(broken, part)[1] = value
        with pytest.raises(ValueError, match=words):
            build(broken, device)
    for format in ("csc", "bsr"):  # SciPy's own conversions to CSR trust these indices, and crash
        for bad in (10**6, -5):
            matrix = scipy.sparse.random_array((50, 40), density=0.2, format=format)
            matrix.indices[3] = bad
            with pytest.raises(ValueError, match="ind"):
                build(matrix, device)
    coo = EYE.tocoo()
    coo.coords[0][2] = 7
    with pytest.raises(ValueError, match=r"row.*7"):
        build(coo, device)


# Parameters

PARAMETERS = [
    ("n_lanes 0", (0, {"n_lanes": 0}), ValueError, "n_lanes.*1 to 32.*0"),
    ("n_lanes 33", (0, {"n_lanes": 33}), ValueError, "n_lanes.*1 to 32.*33"),
    ("n_lanes negative", (0, {"n_lanes": -1}), ValueError, "n_lanes.*1 to 32.*-1"),
    ("n_lanes 1.5", (0, {"n_lanes": 1.5}), (TypeError, ValueError), "n_lanes.*1.5"),
    ("n_lanes as text", (0, {"n_lanes": "4"}), (TypeError, ValueError), "n_lanes.*'4'"),
    ("n_chunks 0", (0, {"n_chunks": 0}), ValueError, "n_chunks.*1.*0"),
    ("n_chunks negative", (0, {"n_chunks": -5}), ValueError, "n_chunks.*-5"),
    ("n_chunks 2.0", (0, {"n_chunks": 2.0}), (TypeError, ValueError), "n_chunks.*2.0"),
    ("split unknown", (0, {"split": "row"}), ValueError, "split.*'rows'.*'nnz'.*'row'"),
    ("split 1", (0, {"split": 1}), ValueError, "split.*1"),
    ("block_size 0", (1, {"block_size": 0}), ValueError, "block_size.*1 to 32.*0"),
    ("block_size 33", (1, {"block_size": 33}), ValueError, "block_size.*1 to 32.*33"),
    ("block_size 2.5", (1, {"block_size": 2.5}), (TypeError, ValueError), "block_size.*2.5"),
    ("block_size None", (1, {"block_size": None}), (TypeError, ValueError), "block_size.*None"),
    ("unknown keyword", (0, {"lanes": 4}), TypeError, "lanes"),
    ("another class' keyword", (1, {"n_lanes": 4}), TypeError, "n_lanes"),
]


@cases(PARAMETERS)
def test_parameters(given, error, words, device):
    number, keywords = given
    with pytest.raises(error, match=words):
        CLASSES[number](EYE, device=device, **keywords)
    with pytest.raises(error, match=words):
        from_csr(CLASSES[number], EYE.indptr, EYE.indices, EYE.data, EYE.shape, device=device, **keywords)


def test_asarray_formats(device):
    with pytest.raises(ValueError, match=r"format.*auto.*cvr.*bbcsr.*'csr'"):
        cvrarray.asarray(EYE, format="csr", device=device)


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99", "cpu:0", "CPU", 0, None])
def test_device_names(name):
    """None is no name for a move; elsewhere it means where the matrix lives."""
    if name == "cuda:99":
        pytest.importorskip("cupy", reason="without CuPy no GPU has a number: the error is that CuPy is missing")
    A = cvrarray.CVRArray(EYE)
    with pytest.raises(ValueError, match="device"):
        A.to_device(name)
    if name is not None:
        with pytest.raises(ValueError, match="device"):
            cvrarray.CVRArray(EYE, device=name)
        with pytest.raises(ValueError, match="device"):
            cvrarray.asarray(EYE, device=name)


def test_a_gpu_that_is_not_there():
    if devices.gpu_count():  # asked for here: to collect the tests does not use CUDA
        pytest.skip("this machine has a GPU")
    with pytest.raises((ValueError, ModuleNotFoundError), match="GPU"):
        cvrarray.CVRArray(EYE, device="cuda")


@pytest.mark.parametrize("k", [-1, 2, 10**12])
def test_chunk_numbers(k, device):
    A = cvrarray.CVRArray(EYE, n_lanes=2, n_chunks=2, device=device)
    with pytest.raises(IndexError, match=rf"\[0, 2\).*{k}"):
        A.chunk(k)


# Blocks

ONES = np.ones((2, 3, 3))
BLOCKS = [
    ("one length less", ([0], [0, 1], ONES, None), ValueError, "one length.*1 and 2"),
    ("blocks not square", ([0, 1], [0, 1], np.ones((2, 3, 2)), None), ValueError, r"blocks.*\(2, 3, 2\)"),
    ("blocks 2-D", ([0, 1], [0, 1], np.ones((2, 3)), None), ValueError, r"blocks.*\(2, 3\)"),
    ("blocks too large", ([0, 1], [0, 1], np.ones((2, 33, 33)), None), ValueError, "block_size.*32.*33"),
    ("blocks empty", ([0, 1], [0, 1], np.ones((2, 0, 0)), None), ValueError, "block_size.*0"),
    ("negative pair", ([0, -1], [0, 1], ONES, None), ValueError, "rows.*-1"),
    ("pair outside the shape", ([0, 1], [0, 3], ONES, (6, 9)), ValueError, r"cols.*\[0, 3\).*3"),
    ("float pairs", ([0.0, 1.0], [0, 1], ONES, None), TypeError, "rows.*integers.*float64"),
    ("object blocks", ([0, 1], [0, 1], ONES.astype(object), None), TypeError, "values must be.*object"),
    ("longdouble blocks", ([0, 1], [0, 1], ONES.astype(np.longdouble), None), TypeError, "values must be.*astype"),
]


@cases(BLOCKS)
def test_blocks(given, error, words, device):
    rows, cols, blocks, shape = given
    arrays = put_where_possible([np.array(rows), np.array(cols), blocks], device)
    with pytest.raises(error, match=words):
        cvrarray.BBCSRArray.from_blocks(*arrays, shape=shape, device=device)


# x


@pytest.fixture(params=DEFAULTS, ids=str)
def A(request, device):
    """3 x 4."""
    return request.param(scipy.sparse.csr_array((DATA, INDICES, INDPTR), shape=SHAPE), device)


X = [
    ("x too short", np.ones(3), ValueError, r"x.*length 4.*\(3, 4\).*3"),
    ("x too long", np.ones(5), ValueError, "x.*length 4.*5"),
    ("x empty", np.ones(0), ValueError, "x.*length 4.*0"),
    ("x of one entry", np.ones(1), ValueError, "x.*length 4.*1"),
    ("x 2-D of the wrong length", np.ones((3, 1)), ValueError, r"x.*length 4.*\(3, 1\)"),
    ("x 3-D", np.ones((4, 7, 2)), (TypeError, ValueError), r"x.*(1-D|rows).*\(4, 7, 2\)"),
    ("x 0-D", np.array(1.0), TypeError, "x.*1-D"),
    ("x longdouble", np.ones(4, np.longdouble), TypeError, "longdouble|float128|dtype"),
    ("x object", np.ones(4, object), TypeError, "x.*numeric.*object"),
    ("x str", np.array(list("abcd")), TypeError, "x.*numeric.*U1"),
    ("x datetime", np.zeros(4, "M8[D]"), TypeError, "x.*numeric.*datetime"),
    ("x timedelta", np.zeros(4, "m8[s]"), TypeError, "x.*numeric.*timedelta"),
    ("x structured", np.zeros(4, [("a", "f8")]), TypeError, "x.*numeric"),
]


@cases(X)
def test_x(A, given, error, words, device):
    if not is_cupys(given.dtype) and device != "cpu":
        x, words = given, r"cupy\.asarray"
    else:
        x = put(given, device)
    for product in (lambda: A @ x, lambda: A.matvec(x), lambda: np.matmul(A, x)):
        with pytest.raises(error, match=words):
            product()


@pytest.mark.parametrize("value", [None, "abcd", 3.0, object(), {1: 2}, {1, 2}], ids=lambda value: type(value).__name__)
def test_x_is_no_array(A, value):
    with pytest.raises(TypeError):
        A @ value
    with pytest.raises(TypeError):
        A.matvec(value)


@BUILD
def test_x_on_the_host(build, gpu):
    """A device array refuses host x: no copy behind the user's back, and the remedy in the message."""
    A = build(EYE, gpu)
    for x in (np.ones(4), [1.0] * 4, np.ones(3)):
        with pytest.raises(TypeError, match=r"cupy\.asarray|to_device"):
            A @ x
    with pytest.raises(TypeError, match=r"must be a cupy\.ndarray .* got numpy\.ndarray"):
        A.matvec(np.ones(4))
    with pytest.raises(TypeError, match=r"cupy\.asarray|to_device"):
        np.matmul(A, np.ones(4))
    with pytest.raises(TypeError, match="out"):
        A.matvec(put(np.ones(4), gpu), out=np.ones(4))


@BUILD
def test_x_on_a_gpu(build, gpu):
    A = build(EYE, "cpu")
    with pytest.raises(TypeError, match=r"get\(\)|to_device"):
        A @ put(np.ones(4), gpu)
    with pytest.raises(TypeError, match="out"):
        A.matvec(np.ones(4), out=put(np.ones(4), gpu))


@pytest.mark.parametrize("kind", ["csr_array", "coo_array", "COO", "CVRArray"])
def test_x_sparse(kind):
    """``A @ x`` takes sparse matrices; matvec, whose x is a vector, names that."""
    others = [EYE, EYE.tocoo(), sparse.COO.from_numpy(np.eye(4)), cvrarray.CVRArray(EYE)]
    (x,) = (other for other in others if type(other).__name__ == kind)
    for build in DEFAULTS:
        for product in (build(EYE).matvec, build(EYE).matmat, build(EYE).rmatvec):
            with pytest.raises(TypeError, match=r"x must be dense.*A @ x"):
                product(x)


@BUILD
def test_x_from_the_left(build):
    A = build(EYE)
    for x in (np.ones(3), np.ones((2, 5)), [1.0] * 3):
        with pytest.raises(ValueError, match=r"x must have (length 4|4 columns)"):
            x @ A
    with pytest.raises(TypeError, match=r"1-D.*2-D"):
        protocol.matmul(np.array(1.0), A)


# out, alpha and beta

OUT = [
    ("out too short", {"out": np.ones(2)}, ValueError, "out.*length 3.*2"),
    ("out too long", {"out": np.ones(4)}, ValueError, "out.*length 3.*4"),
    ("out 2-D", {"out": np.ones((3, 1))}, (TypeError, ValueError), r"out.*1-D.*\(3, 1\)"),
    ("out int", {"out": np.ones(3, int)}, TypeError, "out.*float64.*int64"),
    ("out bool", {"out": np.ones(3, bool)}, TypeError, "out.*float64.*bool"),
    ("out complex with beta", {"out": np.ones(3, complex), "beta": 2}, TypeError, "out must have the product's dtype, float64"),
    ("beta without out", {"beta": 2}, (TypeError, ValueError), "beta.*out"),
    ("beta nan without out", {"beta": np.nan}, (TypeError, ValueError), "beta.*out"),
    ("alpha complex", {"alpha": 1j}, TypeError, "alpha.*float64.*1j"),
    ("alpha text", {"alpha": "2"}, TypeError, "alpha"),
    ("alpha None", {"alpha": None}, TypeError, "alpha"),
    ("alpha an array", {"alpha": np.ones(3)}, (TypeError, ValueError), "alpha"),
    ("beta complex", {"beta": 1j, "out": np.ones(3)}, TypeError, "beta.*float64"),
]


@cases(OUT)
def test_out(A, given, error, words, device):
    keywords = {name: put(value, device) if name == "out" else value for name, value in given.items()}
    before = get(keywords["out"]).copy() if "out" in keywords else None
    with pytest.raises(error, match=words):
        A.matvec(put(np.ones(4), device), **keywords)
    if before is not None:
        np.testing.assert_array_equal(get(keywords["out"]), before)


def test_out_of_other_kinds(A):
    """What is no array on the array's device."""
    if A.device != "cpu":
        pytest.skip("covered by the tests of host arrays")
    for out in ([0.0] * 3, (0.0,) * 3, 0.0, np.empty(3, object)):
        with pytest.raises(TypeError, match="out"):
            A.matvec(np.ones(4), out=out)


@BUILD
def test_out_read_only(build):
    out = np.zeros(4)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"out.*read-only"):
        build(EYE).matvec(np.ones(4), out=out)
    assert not out.any()


@BUILD
@pytest.mark.parametrize(
    ("shape", "strides"), [((4,), (0,)), ((4, 1), (0, 8)), ((4, 3), (0, 0)), ((4, 3), (8, 8)), ((4, 5), (16, -8))]
)
def test_out_whose_numbers_share_memory(build, shape, strides, device):
    """The last of several writes would stay, which on a GPU is another one in each run."""
    A, x = build(EYE, device), put(np.ones(shape), device)
    library = "numpy" if device == "cpu" else "cupy"
    as_strided = importlib.import_module(f"{library}.lib.stride_tricks").as_strided
    out = as_strided(put(np.zeros(20), device)[8:], shape, strides)
    with pytest.raises(ValueError, match=r"out must have memory for each number.*strides"):
        (A.matvec if len(shape) == 1 else A.matmat)(x, out=out)
    assert not get(out).any()


@BUILD
@pytest.mark.parametrize("strides", [(8, 32), (-8, 32), (24, -8), (8, 40), (24, 16)])
def test_out_whose_numbers_lie_apart(build, strides, device):
    """In any order, also between each other."""
    A, library = build(EYE, device), "numpy" if device == "cpu" else "cupy"
    out = importlib.import_module(f"{library}.lib.stride_tricks").as_strided(put(np.zeros(40), device)[20:], (4, 3), strides)
    assert A.matmat(put(np.arange(12.0).reshape(4, 3), device), out=out) is out
    np.testing.assert_array_equal(get(out), np.arange(12.0).reshape(4, 3))


@BUILD
def test_scalars_on_the_gpu(build, gpu):
    """To read one would be to wait for the device."""
    A, x = build(EYE, gpu), put(np.ones(4), gpu)
    for name in ("alpha", "beta"):
        with pytest.raises(TypeError, match=f"{name} must be a scalar"):
            A.matvec(x, out=put(np.zeros(4), gpu), **{name: put(np.array(2.0), gpu)})


@BUILD
@pytest.mark.parametrize(
    ("dtype", "alpha"), [("int64", 0.5), ("uint8", -1), ("int8", 300), ("int32", np.nan), ("int32", np.inf)]
)
def test_scalars_that_do_not_fit_integers(build, dtype, alpha, device):
    A = build(zoo.integers("tridiagonal_31", dtype), device)
    with pytest.raises(TypeError, match="alpha"):
        A.matvec(put(zoo.vector(31, dtype), device), alpha=alpha)


# NumPy


@BUILD
def test_cupy_does_not_swallow_it(build, gpu):
    import cupy

    A = build(EYE, gpu)
    with pytest.raises(TypeError):
        cupy.asarray(A)
    product = cupy.ones(4) @ A
    assert type(product) is cupy.ndarray
    np.testing.assert_array_equal(product.get(), np.ones(4))


def test_shape_beyond_offsets():
    with pytest.raises(ValueError, match=r"shape.*2\^62"):
        from_csr(cvrarray.BBCSRArray, [0, 1], [2**63 - 2], [2.0], (1, 2**63 - 1))
