"""Families of matrices whose sizes and shapes are drawn: as many as wanted that no constant was fitted to.

``drawn(seed)`` names a matrix of every family. Another seed gives other sizes, orders, bands and blocks. Constants are
fitted to seeds below UNSEEN, never to those from there on: ``make bench-unseen`` has the first.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse, spatial

from cvrarray import generate

from . import kinds
from .kinds import CSRMatrix, blocked, from_pairs, symmetric

#: Seeds from here on are for records of matrices that nothing was fitted to.
UNSEEN = 1000

#: About so many nonzeros; times and choices differ most there.
LEAST, MOST = 60_000, 9_000_000

Draw = Callable[[np.random.Generator, int], CSRMatrix]


def drawn(seed: int) -> list[str]:
    """Names of a matrix of every family."""
    return [f"{family}.{seed}" for family in FAMILIES]


def about(seeds: str) -> str:
    """Sentences for a page on matrices that were drawn with these seeds, separated by commas."""
    text = (
        f"The matrices are those of `asv_bench/record/families.py` that are drawn with the seed {seeds}: one of each family, "
        "with random values. The constants by which `asarray` chooses, and those of kernels, were fitted to other seeds and "
        "other matrices when this was measured."
    )
    if any(int(seed) < UNSEEN for seed in seeds.split(",")):
        text += " Since then they may have been fitted to these too."
    return text


def build(name: str) -> CSRMatrix:
    """The matrix called `name`, a family and a seed, the same in every run."""
    family, seed = name.split(".")
    rng = np.random.default_rng([int(seed), zlib.crc32(family.encode())])
    size = int(math.exp(rng.uniform(math.log(LEAST), math.log(MOST))))
    return kinds.plain(FAMILIES[family](rng, size))


def _order(rng: np.random.Generator) -> str:
    return str(rng.choice(["rcm", "x", "random"], p=[0.45, 0.35, 0.2]))


def _mesh(dims: int, dofs: tuple[int, ...]) -> Draw:
    """Linear elements in `dims` dimensions with one of these numbers of unknowns a node."""

    def draw(rng: np.random.Generator, nnz: int) -> CSRMatrix:
        dof = int(rng.choice(dofs))
        n = max(60, min(400_000, nnz // ((7 if dims == 2 else 16) * dof * dof)))
        return kinds.mesh(n, dims, dof, _order(rng), rng)

    return draw


def holed(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Dense blocks of 2 to 6 on a mesh's graph, of which some entries are missing."""
    dof, missing = int(rng.integers(2, 7)), rng.uniform(0.02, 0.5)
    full = kinds.mesh(max(60, int(nnz / ((1 - missing) * 7 * dof * dof))), 2, dof, _order(rng), rng)
    return _thinned(full, missing, rng)


def _thinned(matrix: CSRMatrix, missing: float, rng: np.random.Generator) -> CSRMatrix:
    found = matrix.tocoo()
    kept = rng.random(found.nnz) >= missing
    return from_pairs(found.row[kept], found.col[kept], found.shape)


def bricks(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Trilinear bricks in a box with 1, 3 or 4 unknowns a node, sometimes renumbered."""
    dof = int(rng.choice([1, 3, 4]))
    graph = sparse.csr_array(generate.stencil27(max(4, round((nnz / (25 * dof * dof)) ** (1 / 3))), dtype="float32"))
    return blocked(kinds.ordered(graph, str(rng.choice(["none", "rcm", "random"], p=[0.5, 0.3, 0.2])), rng), dof)


def star(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """A cross of radius 1 to 5 on a grid of 2 or 3 dimensions."""
    radius, dims = int(rng.integers(1, 6)), int(rng.integers(2, 4))
    n = max(2 * radius + 1, round((nnz / (2 * radius * dims + 1)) ** (1 / dims)))
    line = sparse.diags_array([np.ones(n)] * (2 * radius + 1), offsets=range(-radius, radius + 1), shape=(n, n))
    found: Any = line
    for _ in range(dims - 1):
        found = sparse.kron(found, sparse.eye_array(n)) + sparse.kron(sparse.eye_array(found.shape[0]), line)
    return sparse.csr_array(found)


def diagonals(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Some diagonals anywhere, as a queueing network's generator has them."""
    count = int(rng.integers(3, 24))
    n = max(200, nnz // count)
    offsets = np.unique(np.concatenate([[0, 1, -1], (rng.standard_normal(count) * n / rng.integers(4, 400)).astype(int)]))
    row = np.repeat(np.arange(n), offsets.size)
    col = row + np.tile(offsets, n)
    inside = (col >= 0) & (col < n)
    return from_pairs(row[inside], col[inside], (n, n))


def band(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """A band with random entries: narrow or wide, 3 to 40 a row."""
    per_row = int(math.exp(rng.uniform(math.log(3), math.log(40))))
    n = max(200, nnz // per_row)
    half = int(math.exp(rng.uniform(math.log(per_row), math.log(min(n, 60_000)))))
    return kinds.band(n, half, per_row, rng)


def full_band(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """A full band, 3 to 201 wide."""
    half = int(math.exp(rng.uniform(0, math.log(100))))
    return kinds.band(max(300, nnz // (2 * half + 1)), half, 0, rng)


def uneven_band(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """A band whose rows have log-normal lengths."""
    mean, spread = rng.uniform(4, 40), rng.uniform(0.2, 1.2)
    n = max(200, int(nnz / mean))
    lengths = np.exp(rng.standard_normal(n) * spread)
    lengths = np.clip((lengths * mean / lengths.mean()).astype(np.int64), 1, n // 4)
    row = np.repeat(np.arange(n), lengths)
    half = max(int(math.exp(rng.uniform(math.log(50), math.log(min(n, 50_000))))), 2)
    return from_pairs(row, np.clip(row + rng.integers(-half, half + 1, row.size), 0, n - 1), (n, n))


def small_world(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """A ring whose nodes know their neighbours, and some anywhere."""
    each = int(rng.integers(2, 9))
    n = max(200, nnz // (2 * each))
    first = np.repeat(np.arange(n), each)
    second = (first + np.tile(np.arange(1, each + 1), n)) % n
    moved = rng.random(first.size) < rng.uniform(0.02, 0.4)
    return symmetric(first, np.where(moved, rng.integers(0, n, first.size), second), n)


def communities(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Groups of nodes that mostly know one another, numbered group by group."""
    each, size = int(rng.integers(4, 20)), int(math.exp(rng.uniform(math.log(30), math.log(3000))))
    n = max(400, nnz // (2 * each))
    first = np.repeat(np.arange(n), each)
    near = np.minimum(first // size * size + rng.integers(0, size, first.size), n - 1)
    return symmetric(first, np.where(rng.random(first.size) < 0.9, near, rng.integers(0, n, first.size)), n)


def power_law(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Both ends of an edge drawn by a power of their number; numbered by degree or anyhow, directed or not."""
    mean, power = rng.uniform(4, 30), rng.uniform(1.3, 3)
    n = max(400, int(nnz / mean))
    first, second = ((n * rng.random(int(n * mean)) ** power).astype(np.int64) for _ in range(2))
    if rng.random() < 0.7:
        number = rng.permutation(n)
        first, second = number[first], number[second]
    return from_pairs(first, second, (n, n)) if rng.random() < 0.5 else symmetric(first[::2], second[::2], n)


def citations(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Papers that cite earlier ones, popular ones more."""
    mean = rng.uniform(3, 15)
    n = max(400, int(nnz / mean))
    count = rng.poisson(mean, n)
    row = np.repeat(np.arange(n), count)
    popular = (row * rng.random(row.size) ** rng.uniform(1, 3)).astype(np.int64)
    if rng.random() < 0.5:
        return from_pairs(row, popular, (n, n))
    number = rng.permutation(n)
    return symmetric(number[row[::2]], number[popular[::2]], n)


def rmat(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """A Graph500 graph, shuffled or not."""
    each = int(rng.integers(6, 24))
    scale = max(8, round(math.log2(nnz / (1.8 * each))))
    shuffled = bool(rng.random() < 0.7)
    return sparse.csr_array(generate.rmat(scale, each, shuffle=shuffled, seed=int(rng.integers(99)), dtype="float32"))


def neighbours(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """The nearest neighbours of points: rows of one length, columns not symmetric."""
    each, dims = int(rng.integers(4, 33)), int(rng.integers(2, 4))
    n = max(100, nnz // each)
    points = rng.random((n, dims))
    if rng.random() < 0.7:
        points = points[np.argsort(points[:, 0])]
    found = spatial.cKDTree(points).query(points, each)[1]
    return from_pairs(np.repeat(np.arange(n), each), found.ravel(), (n, n))


def cloud(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Points coupled to all within a radius."""
    each = int(math.exp(rng.uniform(math.log(8), math.log(300))))
    return kinds.cloud(max(400, nnz // each), each, _order(rng), rng)


def one_hot(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Rows with one of each category, the categories' sizes very different."""
    sizes = np.exp(rng.uniform(0.7, math.log(50_000), int(rng.integers(3, 20)))).astype(np.int64)
    n = max(400, nnz // sizes.size)
    col = (sizes * rng.random((n, sizes.size)) ** 2).astype(np.int64) + np.cumsum(sizes) - sizes
    return from_pairs(np.repeat(np.arange(n), sizes.size), col.ravel(), (n, int(sizes.sum())))


def documents(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Documents of uneven length by terms of Zipf's frequencies; or terms by documents."""
    mean, terms = rng.uniform(20, 150), int(rng.integers(3_000, 80_000))
    n = max(200, int(nnz / mean))
    lengths = np.exp(rng.standard_normal(n) * 0.8)
    row = np.repeat(np.arange(n), np.maximum(1, (lengths * mean / lengths.mean()).astype(np.int64)))
    col = np.minimum((terms ** rng.random(row.size)).astype(np.int64) - 1, terms - 1)
    found = from_pairs(row, rng.permutation(terms)[col], (n, terms))
    return found if rng.random() < 0.6 else sparse.csr_array(found.T)


def short_rows(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """1 to 4 entries a row: interpolation, gathers, incidence of a graph; far or near."""
    each = int(rng.integers(1, 5))
    n = max(1_000, nnz // each)
    n_cols = max(100, int(n * rng.uniform(0.05, 1.5)))
    row = np.repeat(np.arange(n), each)
    at = row * n_cols // n + (rng.standard_normal(row.size) * math.exp(rng.uniform(1, math.log(n_cols)))).astype(np.int64)
    return from_pairs(row, at % n_cols, (n, n_cols))


def arrow(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """A Hessian with blocks on the diagonal, and some unknowns that couple to many."""
    dof, hubs = int(rng.choice([1, 2, 3, 6])), int(rng.integers(1, 40))
    each = rng.uniform(1, min(6, hubs + 1))
    n = max(200, int(nnz / (dof * dof * (1 + 2 * each))))
    first = np.repeat(np.arange(hubs), n)
    second = hubs + np.tile(np.arange(n), hubs)
    kept = rng.random(first.size) < each / hubs
    return blocked(symmetric(first[kept], second[kept], n + hubs), dof)


def block_tridiagonal(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """Dense blocks of 2 to 40 on three block diagonals, as control problems have them."""
    size = int(math.exp(rng.uniform(math.log(2), math.log(40))))
    n = max(4, nnz // (3 * size * size))
    graph = sparse.diags_array([np.ones(n)] * 3, offsets=(-1, 0, 1), shape=(n, n), format="csr", dtype=np.float32)
    return blocked(sparse.csr_array(graph), size)


def supernodes(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """The lower triangle of a factor: dense columns in groups of uneven width, below them rows in common."""
    rows_of, cols_of, at = [], [], 0
    width_of = rng.uniform(2, 24)
    n = max(300, int(nnz / (width_of * 2)))
    while at < n:
        width = int(min(n - at, 1 + rng.exponential(width_of)))
        below = np.unique(np.minimum(at + width + (rng.pareto(0.8, int(rng.integers(1, 30))) * 40).astype(np.int64), n - 1))
        rows = np.concatenate([np.arange(at, at + width), below])
        rows_of.append(np.repeat(rows, width))
        cols_of.append(np.tile(np.arange(at, at + width), rows.size))
        at += width
    row, col = np.concatenate(rows_of), np.concatenate(cols_of)
    return from_pairs(row[row >= col], col[row >= col], (n, n))


def kronecker(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    """A small sparse matrix times a small sparse matrix, by Kronecker."""
    size, each = int(rng.integers(8, 60)), int(rng.integers(2, 7))
    inner = kinds.band(size, size - 1, each, rng)
    n = max(20, nnz // (inner.nnz * 4))
    return sparse.csr_array(sparse.kron(kinds.band(n, max(2, n // 3), 4, rng), inner))


def _sized(function: Callable[..., CSRMatrix], per: float, *drawn: Callable[[np.random.Generator], Any]) -> Draw:
    """A kind of :mod:`.kinds` whose first argument is the number of nonzeros over `per`; others are drawn."""
    return lambda rng, nnz: function(max(64, int(nnz / per)), *[draw(rng) for draw in drawn], rng)


def _pose(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    dof, closures = int(rng.choice([3, 6])), rng.uniform(0.2, 2)
    return kinds.pose_graph(max(100, int(nnz / (dof * dof * (3 + 2 * closures)))), dof, closures, rng)


def _bundle(jacobian: bool) -> Draw:
    def draw(rng: np.random.Generator, nnz: int) -> CSRMatrix:
        seen = int(rng.integers(3, 9))
        points = max(200, nnz // (18 * seen if jacobian else 9 + 36 * seen))
        return kinds.bundle(int(rng.integers(20, max(40, points // 60 + 21))), points, seen, jacobian, rng)

    return draw


def _tomography(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    angles = int(rng.integers(20, 120))
    found = kinds.tomography(max(16, min(300, int(math.sqrt(nnz / (1.6 * angles))))), angles, rng)
    return found if rng.random() < 0.7 else sparse.csr_array(found.T)


def _coarse(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    points, levels, dof = int(rng.choice([7, 27])), int(rng.integers(1, 3)), int(rng.choice([1, 1, 3]))
    side = max(12, min(70, int((nnz / dof**2 / 2) ** (1 / 3) * levels)))
    return kinds.coarse(side, points, levels, dof, rng)


def _quadratic(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    dof = int(rng.integers(1, 4))
    return kinds.quadratic(max(100, nnz // (46 * dof * dof)), dof, False, rng)


def _stokes(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    return kinds.quadratic(max(100, nnz // 250), 2, True, rng)


def _covering(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    each = int(rng.integers(2, 12))
    found = kinds.covering(int(math.exp(rng.uniform(math.log(100), math.log(10_000)))), max(500, nnz // each), each, rng)
    return found if rng.random() < 0.6 else sparse.csr_array(found.T)


def _staircase(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    rows = int(rng.integers(60, 900))
    return kinds.staircase(max(3, nnz // (9 * rows)), rows, int(rows * rng.uniform(1.2, 3)), rng)


def _ratings(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    return kinds.ratings(max(100, int(nnz / rng.uniform(10, 80))), int(rng.integers(1_000, 60_000)), nnz, rng)


def _lengths(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    mean = math.exp(rng.uniform(math.log(4), math.log(60)))
    n = max(200, int(nnz / mean))
    return kinds.lengths(n, int(n * rng.uniform(0.3, 3)), mean, rng.uniform(0.3, 1.4), 20_000, rng)


def _uniform(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    each = int(math.exp(rng.uniform(math.log(4), math.log(300))))
    n = max(200, nnz // each)
    return from_pairs(np.repeat(np.arange(n), each), rng.integers(0, n, n * each), (n, n))


def _grid2(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    radius, cross = int(rng.integers(1, 4)), bool(rng.random() < 0.4)
    points = 4 * radius + 1 if cross else (2 * radius + 1) ** 2
    return kinds.grid2(max(20, int(math.sqrt(nnz / points))), radius, cross, rng)


def _voxels(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    return kinds.masked(max(16, int((nnz / 1.5) ** (1 / 3))), rng)


def _spins(rng: np.random.Generator, nnz: int) -> CSRMatrix:
    return kinds.spins(max(10, min(18, int(math.log2(nnz / 9)))), rng)


FAMILIES: dict[str, Draw] = {
    "mesh2": _mesh(2, (1,)),
    "mesh2_dof": _mesh(2, (2, 3, 4, 5, 6)),
    "mesh3": _mesh(3, (1,)),
    "mesh3_dof": _mesh(3, (2, 3, 4, 6)),
    "holed": holed,
    "bricks": bricks,
    "star": star,
    "diagonals": diagonals,
    "band": band,
    "full_band": full_band,
    "uneven_band": uneven_band,
    "small_world": small_world,
    "communities": communities,
    "power_law": power_law,
    "citations": citations,
    "rmat": rmat,
    "neighbours": neighbours,
    "cloud": cloud,
    "one_hot": one_hot,
    "documents": documents,
    "short_rows": short_rows,
    "arrow": arrow,
    "block_tridiagonal": block_tridiagonal,
    "supernodes": supernodes,
    "kronecker": kronecker,
    "quadratic": _quadratic,
    "stokes": _stokes,
    "edges": _sized(kinds.edge_elements, 130.0),
    "road": lambda rng, nnz: kinds.road(max(40, int(math.sqrt(nnz / 2.4))), rng),
    "pose": _pose,
    "bundle_H": _bundle(False),
    "bundle_J": _bundle(True),
    "tomography": _tomography,
    "coarse": _coarse,
    "circuit": _sized(kinds.circuit, 5.0),
    "web": _sized(kinds.web, 13.0, lambda rng: int(rng.integers(6, 20))),
    "ratings": _ratings,
    "grid2": _grid2,
    "voxels": _voxels,
    "covering": _covering,
    "staircase": _staircase,
    "spins": _spins,
    "lengths": _lengths,
    "uniform": _uniform,
}
