"""The generated matrices: their patterns by plain loops, their statistics, and that they are canonical."""

import math
import sys

import numpy as np
import pytest
import scipy.sparse
from checks import in_turn

from cvrarray import generate
from cvrarray.core import devices

SMALL = {
    "stencil27": lambda **options: generate.stencil27(4, **options),
    "poisson7": lambda **options: generate.poisson7(4, **options),
    "elast3": lambda **options: generate.elast3(3, **options),
    "shell6": lambda **options: generate.shell6(3, **options),
    "rmat": lambda **options: generate.rmat(7, 8, **options),
    "uniform": lambda **options: generate.uniform(100, 7, **options),
    "lognormal": lambda **options: generate.lognormal(60, 300, 20, 100, **options),
    "elasticity": lambda **options: generate.elasticity(1, **options),
}


@pytest.fixture(params=SMALL)
def make(request):
    if request.param == "elasticity":
        pytest.importorskip("skfem")
    return SMALL[request.param]


def host(matrix):
    return scipy.sparse.csr_array(matrix.get() if hasattr(matrix, "get") else matrix)


@in_turn("name, dtype", SMALL, ["float32", "float64", "complex64", "complex128"])
def test_canonical(name, dtype, device):
    if name == "elasticity":
        pytest.importorskip("skfem")
    device = devices.parse(device)
    with device.use():
        matrix = SMALL[name](dtype=dtype, xp=device.xp)
    assert isinstance(matrix.data, device.xp.ndarray)
    assert matrix.dtype == dtype
    assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
    parts = host(matrix)
    # a new object has no flags to believe: SciPy looks for itself
    assert scipy.sparse.csr_array((parts.data, parts.indices, parts.indptr), shape=parts.shape).has_canonical_format
    assert matrix.has_canonical_format


def test_same_seed_same_matrix(make, device):
    device = devices.parse(device)
    with device.use():
        first, again, other = (host(make(xp=device.xp, seed=seed)) for seed in (5, 5, 6))
    assert make is SMALL["elasticity"] or (first != other).nnz > 0
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(first, part), getattr(again, part))


@pytest.mark.parametrize(
    ("name", "reach", "dof"), [("stencil27", 3, 1), ("poisson7", 1, 1), ("elast3", 3, 3), ("shell6", 3, 6)]
)
def test_grid_pattern(name, reach, dof):
    """Two unknowns are coupled where their nodes are at most one step apart in every direction, and `reach` in all."""
    n = 3
    matrix = getattr(generate, name)(n).toarray() != 0
    nodes = [np.array((z, y, x)) for z in range(n) for y in range(n) for x in range(n)]
    for i, at in enumerate(nodes):
        for j, to in enumerate(nodes):
            away = abs(at - to)
            near = away.max() <= 1 and away.sum() <= reach
            assert (matrix[i * dof : (i + 1) * dof, j * dof : (j + 1) * dof] == near).all()


def test_values_never_cancel():
    for matrix in (generate.poisson7(5), generate.uniform(50, 3)):
        assert matrix.data.min() >= 0.5
    both = generate.poisson7(5, dtype=np.complex64).data
    assert min(both.real.min(), both.imag.min()) >= 0.5
    assert max(both.real.max(), both.imag.max()) < 1.5


def test_rmat_quadrants():
    """Edges, counted with their multiplicity, fall into quadrants with the probabilities asked for."""
    scale, edge_factor, chances = 12, 64, (0.5, 0.3, 0.15, 0.05)
    matrix = generate.rmat(scale, edge_factor, *chances[:3], shuffle=False, seed=3)
    half = 1 << scale - 1
    total = edge_factor << scale
    # values have mean 1, and a pair that comes k times has k times its value
    found = [matrix[rows, cols].sum() / total for rows in _halves(half) for cols in _halves(half)]
    np.testing.assert_allclose(found, chances, atol=0.01)


def _halves(half):
    return slice(None, half), slice(half, None)


def test_rmat_shuffle_renumbers_both_sides_alike():
    plain = generate.rmat(9, 8, shuffle=False, seed=4)
    mixed = generate.rmat(9, 8, shuffle=True, seed=4)
    assert plain.nnz == mixed.nnz
    pairs = [sorted(zip(np.diff(m.indptr), np.bincount(m.indices, minlength=512), strict=True)) for m in (plain, mixed)]
    assert pairs[0] == pairs[1]  # (out degree, in degree) of every vertex, in another order
    assert (np.diff(plain.indptr) != np.diff(mixed.indptr)).any()


def test_rmat_is_skewed():
    lengths = np.diff(generate.rmat(12, 16).indptr)
    assert lengths.max() > 20 * lengths.mean()
    assert (lengths == 0).any()


@pytest.mark.parametrize("chances", [(-0.1, 0.5, 0.5), (0.6, 0.6, 0.1), (0.5, 0.3, 0.3), (0, 0, 0.5)])
def test_rmat_rejects_what_are_no_probabilities(chances):
    with pytest.raises(ValueError, match="probabilities"):
        generate.rmat(3, 2, *chances)


def test_uniform_row_lengths():
    matrix = generate.uniform(1000, 10)
    lengths = np.diff(matrix.indptr)
    assert lengths.max() <= 10
    assert lengths.mean() > 9.9
    assert matrix.shape == (1000, 1000)


def test_elasticity_is_a_stiffness_matrix_in_full_blocks():
    pytest.importorskip("skfem")
    matrix = generate.elasticity(2)
    n_nodes = 17 * 5 * 5
    assert matrix.shape == (3 * n_nodes, 3 * n_nodes)
    assert abs(matrix - matrix.T).max() < 1e-12
    blocks = matrix.tobsr(blocksize=(3, 3))
    assert blocks.nnz == matrix.nnz  # no hole: every pair of nodes has all 9 entries
    # rigid translations strain nothing, in node-major order
    for axis in range(3):
        assert abs(matrix @ np.tile(np.eye(3)[axis], n_nodes)).max() < 1e-12
    assert np.linalg.eigvalsh(generate.elasticity(0).toarray())[6] > 1e-6  # 6 rigid motions and no other
    assert matrix.diagonal().min() > 0


@pytest.mark.parametrize("dtype", [np.int64, np.float16, bool, np.longdouble])
def test_dtype_must_be_a_floating_one(dtype):
    with pytest.raises(TypeError, match=f"{np.dtype(dtype)}. Use astype"):
        generate.poisson7(3, dtype=dtype)


def test_too_large_for_int32():
    with pytest.raises(ValueError, match="int32"):
        generate.poisson7(1291)


@pytest.mark.parametrize("name", generate.MATRICES)
def test_build(name):
    if name == "elasticity":
        pytest.importorskip("skfem")
    recipe = generate.MATRICES[name]
    of_scale = [getattr(recipe, scale) for scale in ("small", "medium", "full")]
    sizes = [edges << scale for scale, edges in of_scale] if "rmat" in name else [math.prod(sizes) for sizes in of_scale]
    assert sizes == sorted(sizes)
    matrix = generate.build(name, scale="small", dtype=np.float32)
    assert 300_000 < matrix.nnz < 600_000
    assert matrix.dtype == np.float32


def test_elasticity_without_scikit_fem(monkeypatch):
    monkeypatch.setitem(sys.modules, "skfem", None)
    with pytest.raises(ModuleNotFoundError, match=r"cvrarray\[demo\]"):
        generate.elasticity(1)


@pytest.mark.parametrize(("name", "scale", "message"), [("poison", "full", "'poison'"), ("rmat", "huge", "'huge'")])
def test_build_rejects(name, scale, message):
    with pytest.raises(ValueError, match=message):
        generate.build(name, scale=scale)
