"""Generated matrices: stencils, block stencils, Graph500 graphs, random columns, 3-D elasticity.

Each function takes its sizes, then ``dtype``, ``xp`` (numpy, or cupy to build on the current GPU) and ``seed``, and
returns a canonical CSR with int32 indices: ``scipy.sparse.csr_array``, or ``cupyx.scipy.sparse.csr_matrix``.

Values are drawn from [0.5, 1.5), so none cancel; real and imaginary parts of complex ones both are. A position that a
random graph or matrix draws k times has k times its value. :func:`elasticity` is assembled instead: its values have
both signs, and nothing about it is random.

The same arguments give the same matrix again. numpy and cupy draw different numbers from the same seed, so values
differ between them, and so do random positions.

>>> from cvrarray import generate
>>> generate.poisson7(4).shape
(64, 64)
>>> generate.build("stencil27", scale="small").nnz
343000
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray
CSRMatrix = Any  # scipy.sparse.csr_array or cupyx.scipy.sparse.csr_matrix

NEIGHBOURS_27 = [(z, y, x) for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)]
NEIGHBOURS_15 = [step for step in NEIGHBOURS_27 if min(step) >= 0 or max(step) <= 0]
NEIGHBOURS_7 = [step for step in NEIGHBOURS_27 if sum(map(abs, step)) <= 1]


def stencil27(n: int, dtype: Any = np.float64, xp: ModuleType = np, seed: int = 0) -> CSRMatrix:
    """27-point stencil on an n x n x n grid: (n^3, n^3), at most 27 nonzeros a row.

    Examples
    --------
    >>> A = cvrarray.generate.stencil27(5)
    >>> A.shape, int(np.diff(A.indptr).max())
    ((125, 125), 27)
    """
    return _grid(n, NEIGHBOURS_27, 1, dtype, xp, seed)


def poisson7(n: int, dtype: Any = np.float64, xp: ModuleType = np, seed: int = 0) -> CSRMatrix:
    """7-point stencil on an n x n x n grid: (n^3, n^3), at most 7 nonzeros a row.

    Examples
    --------
    >>> A = cvrarray.generate.poisson7(5, dtype="float32")
    >>> A.shape, A.dtype.name, int(np.diff(A.indptr).max())
    ((125, 125), 'float32', 7)
    """
    return _grid(n, NEIGHBOURS_7, 1, dtype, xp, seed)


def elast3(n: int, dtype: Any = np.float64, xp: ModuleType = np, seed: int = 0) -> CSRMatrix:
    """27-point stencil of dense 3 x 3 blocks, the pattern of elasticity on a grid: (3 n^3, 3 n^3).

    Examples
    --------
    >>> S = cvrarray.generate.elast3(4)
    >>> S.shape, cvrarray.statistics(S).block_fill[3]
    ((192, 192), 1.0)
    """
    return _grid(n, NEIGHBOURS_27, 3, dtype, xp, seed)


def shell6(n: int, dtype: Any = np.float64, xp: ModuleType = np, seed: int = 0) -> CSRMatrix:
    """27-point stencil of dense 6 x 6 blocks, as shells with rotations have them: (6 n^3, 6 n^3).

    Examples
    --------
    >>> S = cvrarray.generate.shell6(3)
    >>> S.shape, cvrarray.statistics(S).block_fill[6]
    ((162, 162), 1.0)
    """
    return _grid(n, NEIGHBOURS_27, 6, dtype, xp, seed)


def tetrahedra(n: int, dof: int = 1, dtype: Any = np.float64, xp: ModuleType = np, seed: int = 0) -> CSRMatrix:
    """Linear tetrahedral elements, every cube of a grid of n^3 nodes cut into six: (dof n^3, dof n^3).

    A node is coupled to at most 14 others, by dense dof x dof blocks.

    Examples
    --------
    >>> S = cvrarray.generate.tetrahedra(4, dof=3)
    >>> S.shape, int(np.diff(S.indptr).max())  # 3 unknowns of a node and of its 14 neighbours
    ((192, 192), 45)
    """
    return _grid(n, NEIGHBOURS_15, dof, dtype, xp, seed)


def rmat(
    scale: int,
    edge_factor: int = 16,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    *,
    shuffle: bool = True,
    dtype: Any = np.float64,
    xp: ModuleType = np,
    seed: int = 0,
) -> CSRMatrix:
    """Graph500 Kronecker graph: 2^scale vertices, edge_factor * 2^scale directed edges; parallel edges are summed.

    Every bit of an edge's (row, column) falls into the quadrants 00, 01, 10, 11 with probability a, b, c and
    1 - a - b - c. ``shuffle`` renumbers the vertices at random, as Graph500 requires. Without it, vertices of high
    degree have numbers with few bits set, and memory accesses are more local than a real graph's.
    Source: the Graph500 benchmark specification, section 3.4 (Kronecker generator).

    Examples
    --------
    >>> S = cvrarray.generate.rmat(10, edge_factor=8)
    >>> S.shape, S.nnz <= 8 * 1024
    ((1024, 1024), True)
    """
    if min(a, b, c) < 0 or not 0 < a + b <= 1 or a + b + c > 1:
        raise ValueError(f"rmat needs probabilities a, b, c >= 0 with 0 < a + b and a + b + c <= 1; got {a}, {b}, {c}")
    rng = xp.random.default_rng(seed)
    n_edges = edge_factor << scale
    row = xp.zeros(n_edges, xp.int32)
    col = xp.zeros(n_edges, xp.int32)
    upper, lower = a / (a + b), (c / (1 - a - b) if a + b < 1 else 0.0)  # P(column bit is 0), given the row bit
    for bit in range(scale):
        row_bit = rng.random(n_edges, dtype=xp.float32) >= a + b
        col_bit = rng.random(n_edges, dtype=xp.float32) >= xp.where(row_bit, xp.float32(lower), xp.float32(upper))
        row |= row_bit.astype(xp.int32) << bit
        col |= col_bit.astype(xp.int32) << bit
    if shuffle:
        number = xp.argsort(rng.random(1 << scale)).astype(xp.int32)
        row, col = number[row], number[col]
    return _from_pairs(row, col, (1 << scale, 1 << scale), rng, dtype, xp)


def uniform(n_rows: int, per_row: int, dtype: Any = np.float64, xp: ModuleType = np, seed: int = 0) -> CSRMatrix:
    """Square; each row draws `per_row` uniformly random columns. Duplicates are summed, so a few rows have fewer.

    Examples
    --------
    >>> S = cvrarray.generate.uniform(1000, 4)
    >>> S.shape, int(np.diff(S.indptr).max())
    ((1000, 1000), 4)
    """
    rng = xp.random.default_rng(seed)
    row = xp.repeat(xp.arange(n_rows, dtype=xp.int32), per_row)
    col = rng.integers(0, n_rows, n_rows * per_row, dtype=xp.int32)
    return _from_pairs(row, col, (n_rows, n_rows), rng, dtype, xp)


def lognormal(
    n_rows: int,
    n_cols: int,
    mean: float,
    longest: int,
    spread: float = 1.0,
    *,
    dtype: Any = np.float64,
    xp: ModuleType = np,
    seed: int = 0,
) -> CSRMatrix:
    """Rows of log-normal lengths of uniformly random columns: (n_rows, n_cols). Duplicates are summed.

    `spread` is the standard deviation of the lengths' logarithms, 0 for rows of equal length; `mean` is their mean
    before those beyond `longest` are cut. Set covering and crew scheduling have few such rows over many columns.

    Examples
    --------
    >>> S = cvrarray.generate.lognormal(100, 5000, mean=200, longest=2000)
    >>> S.shape, int(np.diff(S.indptr).max()) <= 2000
    ((100, 5000), True)
    """
    lengths = np.exp(spread * np.random.default_rng(seed).standard_normal(n_rows))
    lengths = np.clip(lengths * (mean / lengths.mean()), 1, min(longest, n_cols)).astype(np.int64)
    ends = xp.cumsum(xp.asarray(lengths))
    row = xp.searchsorted(ends, xp.arange(int(lengths.sum()), dtype=np.int64), side="right").astype(np.int32)
    rng = xp.random.default_rng(seed)
    col = rng.integers(0, n_cols, row.size, dtype=xp.int32)
    return _from_pairs(row, col, (n_rows, n_cols), rng, dtype, xp)


def elasticity(refinements: int, dtype: Any = np.float64, xp: ModuleType = np, seed: int = 0) -> CSRMatrix:
    """Stiffness matrix of a tapered elastic beam, assembled by scikit-fem from 4 n x n x n bricks, n = 2^refinements.

    Linear elasticity in 3-D with a Poisson ratio of 0.3, free on all sides. The three displacements of a node are
    neighbouring unknowns, so every pair of nodes is a dense 3 x 3 block: BBCSR with block_size 3 has no holes. There
    are ``3 (4 n + 1) (n + 1)^2`` rows. Nothing is random, and `seed` has no effect.

    Raises
    ------
    ModuleNotFoundError
        scikit-fem is not installed: ``pip install 'cvrarray[demo]'``.

    Examples
    --------
    >>> S = cvrarray.generate.elasticity(1)
    >>> S.shape, bool(abs(S - S.T).max() < 1e-12)
    ((243, 243), True)
    """
    try:
        import skfem
        from skfem.models.elasticity import lame_parameters, linear_elasticity
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "The elasticity matrix is assembled by scikit-fem, which is not installed: pip install 'cvrarray[demo]'",
            name="skfem",
        ) from error
    from scipy import sparse

    n = 1 << refinements
    side = np.linspace(0.0, 1.0, n + 1)
    mesh = skfem.MeshHex.init_tensor(side, side, np.linspace(0.0, 4.0, 4 * n + 1))  # cross-section by cross-section
    width, height, length = mesh.p
    taper = 1 - length / 8
    mesh = skfem.MeshHex(np.stack([taper * width, taper * height, length]), mesh.t)
    # intorder 3 is the usual 2 x 2 x 2 Gauss points; scikit-fem would take 64, at twenty times the cost. Bricks are
    # assembled in batches that fit in a cache.
    element = skfem.ElementVector(skfem.ElementHex1())
    batches = np.array_split(np.arange(mesh.nelements), -(-mesh.nelements // 4096))
    bases = [skfem.Basis(mesh, element, intorder=3, elements=batch) for batch in batches]
    stiffness = skfem.asm(linear_elasticity(*lame_parameters(1.0, 0.3)), bases).tocsr()
    by_node = bases[0].nodal_dofs.T.ravel()  # nodal_dofs is (3, n_nodes)
    matrix = sparse.csr_array(stiffness[by_node][:, by_node]).astype(dtype)
    matrix.sort_indices()
    return matrix if xp is np else _sparse_module(xp).csr_matrix(matrix)


class Recipe(NamedTuple):
    """A named matrix: the function that makes it, and its positional arguments at every scale.

    Attributes
    ----------
    make : callable
    full : tuple
        30 to 50 million nonzeros, beyond every cache: what GPU figures are quoted at.
    medium : tuple
        About 20 million, beyond a CPU's caches: all matrices are measured in minutes.
    small : tuple
        About half a million: seconds on a CPU.
    options : dict
        Keywords of `make` at every scale.

    Examples
    --------
    >>> recipe = cvrarray.generate.MATRICES["poisson7"]
    >>> recipe.make.__name__, recipe.small
    ('poisson7', (40,))
    """

    make: Callable[..., CSRMatrix]
    full: tuple[int, ...]
    medium: tuple[int, ...]
    small: tuple[int, ...]
    options: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never written)


#: The matrices that ``cvrarray bench`` knows by name.
MATRICES: dict[str, Recipe] = {
    "stencil27": Recipe(stencil27, (120,), (91,), (24,)),
    "poisson7": Recipe(poisson7, (160,), (143,), (40,)),
    "elast3": Recipe(elast3, (56,), (44,), (13,)),
    "shell6": Recipe(shell6, (34,), (28,), (8,)),
    "rmat": Recipe(rmat, (21, 16), (20, 20), (15, 16)),
    "rmat_unshuffled": Recipe(rmat, (21, 16), (20, 20), (15, 16), {"shuffle": False}),
    "uniform_2M_16": Recipe(uniform, (2_000_000, 16), (1_250_000, 16), (30_000, 16)),
    "uniform_200k_150": Recipe(uniform, (200_000, 150), (133_000, 150), (3_000, 150)),
    "lognormal_4k": Recipe(
        lognormal, (4_284, 1_100_000, 2_640, 56_000), (3_000, 770_000, 2_640, 56_000), (400, 90_000, 1_200, 9_000)
    ),
    "elasticity": Recipe(elasticity, (5,), (4,), (3,)),  # in powers of 8: 32, 4 and 0.6 million nonzeros
}

SCALES = ("full", "medium", "small")

#: What values may be, any in [0.5, 1.5), all 1, or FEW different ones.
VALUES = ("random", "one", "few")
FEW = 100


def build(
    name: str,
    *,
    scale: str = "full",
    dtype: Any = np.float64,
    xp: ModuleType = np,
    seed: int = 0,
    values: str = "random",
) -> CSRMatrix:
    """The matrix called `name` in :data:`MATRICES`, at a scale of :data:`SCALES`, with values of :data:`VALUES`.

    Raises
    ------
    ValueError
        There is no such matrix, scale or kind of values; the message lists the names.
    TypeError
        `dtype` is none of float32, float64, complex64 and complex128.

    Examples
    --------
    >>> cvrarray.generate.build("poisson7", scale="small").shape
    (64000, 64000)
    >>> np.unique(cvrarray.generate.build("poisson7", scale="small", values="one").data)
    array([1.])
    """
    if name not in MATRICES:
        raise ValueError(f"no generated matrix is called {name!r}; there are {', '.join(MATRICES)}")
    if scale not in SCALES:
        raise ValueError(f"scale must be 'full', 'medium' or 'small'; got {scale!r}")
    if values not in VALUES:
        raise ValueError(f"values must be 'random', 'one' or 'few'; got {values!r}")
    recipe = MATRICES[name]
    return of_values(recipe.make(*getattr(recipe, scale), dtype=dtype, xp=xp, seed=seed, **recipe.options), values, xp, seed)


def of_values(matrix: CSRMatrix, values: str, xp: ModuleType = np, seed: int = 0) -> CSRMatrix:
    """`matrix` with its values replaced as `values`, one of :data:`VALUES`, says.

    Examples
    --------
    >>> matrix = cvrarray.generate.build("poisson7", scale="small")
    >>> np.unique(cvrarray.generate.of_values(matrix, "few").data).size
    100
    """
    if values == "one":
        matrix.data[...] = 1
    elif values == "few":
        rng = xp.random.default_rng(seed)
        different = _values(rng, FEW, matrix.data.dtype, xp)
        matrix.data[...] = different[rng.integers(0, FEW, matrix.data.size, dtype=np.int32)]
    return matrix


def _grid(n: int, steps: list[tuple[int, int, int]], dof: int, dtype: Any, xp: ModuleType, seed: int) -> CSRMatrix:
    """Every node of an n^3 grid coupled to its neighbours at `steps`, by dense dof x dof blocks.

    `steps` ascend, and so do a row's columns: the CSR is written directly, without a sort.
    """
    n_rows = n**3 * dof
    _require_int32(n_rows)
    node = xp.arange(n**3, dtype=xp.int32)
    place = (node // (n * n), node // n % n, node % n)
    inside = xp.ones((n**3, len(steps)), bool)
    for k, step in enumerate(steps):
        for at, by in zip(place, step, strict=True):
            inside[:, k] &= (at + by >= 0) & (at + by < n)
    offset = xp.asarray([(z * n + y) * n + x for z, y, x in steps], dtype=xp.int32)
    block = (n**3, dof, len(steps), dof)  # node, row in the block, neighbour, column in the block
    col = (node[:, None] + offset)[:, None, :, None] * dof + xp.arange(dof, dtype=xp.int32)
    indices = xp.broadcast_to(col, block)[xp.broadcast_to(inside[:, None, :, None], block)]
    indptr = xp.zeros(n_rows + 1, xp.int64)
    indptr[1:] = xp.cumsum(xp.repeat(inside.sum(axis=1) * dof, dof))
    data = _values(xp.random.default_rng(seed), indices.size, dtype, xp)
    return _csr(data, indices, indptr, (n_rows, n_rows), xp)


def _from_pairs(row: Array, col: Array, shape: tuple[int, int], rng: Any, dtype: Any, xp: ModuleType) -> CSRMatrix:
    """CSR of (row, column) pairs in any order; a pair that occurs k times has k times its value."""
    n_rows, n_cols = shape
    _require_int32(max(shape))
    key = xp.sort(row.astype(xp.int64) * n_cols + col)
    new = xp.ones(key.size, bool)
    new[1:] = key[1:] != key[:-1]
    first = xp.flatnonzero(new)
    times = xp.diff(first, append=xp.asarray([key.size]))
    key = key[first]
    data = _values(rng, key.size, dtype, xp)
    data *= times.astype(data.real.dtype)
    indptr = xp.searchsorted(key, xp.arange(n_rows + 1, dtype=xp.int64) * n_cols)
    return _csr(data, (key % n_cols).astype(xp.int32), indptr, shape, xp)


def _csr(data: Array, indices: Array, indptr: Array, shape: tuple[int, int], xp: ModuleType) -> CSRMatrix:
    _require_int32(data.size)
    parts = (data, indices, indptr.astype(xp.int32))
    sparse = _sparse_module(xp)
    matrix = sparse.csr_array(parts, shape=shape) if xp is np else sparse.csr_matrix(parts, shape=shape)
    matrix.has_sorted_indices = True
    matrix.has_canonical_format = True
    return matrix


def _values(rng: Any, size: int, dtype: Any, xp: ModuleType) -> Array:
    """`size` numbers of a floating dtype in [0.5, 1.5), real and imaginary parts both."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "fc" or dtype.char not in "fdFD":
        raise TypeError(f"generated matrices are float32, float64, complex64 or complex128; got {dtype}. Use astype")
    real = np.dtype(dtype.char.lower())
    if dtype.kind == "f":
        return rng.random(size, dtype=real) + real.type(0.5)
    parts = rng.random((size, 2), dtype=real) + real.type(0.5)
    return parts.view(dtype).ravel()


def _require_int32(count: int) -> None:
    if count >= 2**31:
        raise ValueError(f"generated matrices have int32 indices, for fewer than 2^31 rows and nonzeros; got {count}")


def _sparse_module(xp: ModuleType) -> ModuleType:
    return importlib.import_module("scipy.sparse" if xp is np else "cupyx.scipy.sparse")
