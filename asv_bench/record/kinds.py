"""Structures of many kinds, which :mod:`.families` draws in all sizes.

Each function draws from `rng` and returns a ``scipy.sparse.csr_array`` whose values mean nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse, spatial
from scipy.sparse.csgraph import reverse_cuthill_mckee

from cvrarray import generate

CSRMatrix = Any  # scipy.sparse.csr_array


def from_pairs(row: Any, col: Any, shape: tuple[int, int]) -> CSRMatrix:
    """Ones at these places."""
    matrix = sparse.coo_array((np.ones(len(row), np.float32), (row, col)), shape=shape).tocsr()
    matrix.sum_duplicates()
    return matrix


def symmetric(first: Any, second: Any, n: int, diagonal: bool = True) -> CSRMatrix:
    """The adjacency matrix of an undirected graph, with the diagonal or without."""
    loops = np.arange(n if diagonal else 0)
    return from_pairs(np.concatenate([first, second, loops]), np.concatenate([second, first, loops]), (n, n))


def ordered(graph: CSRMatrix, order: str, rng: np.random.Generator, points: Any = None) -> CSRMatrix:
    """`graph` with its nodes renumbered: "rcm", "x" (by the first coordinate), "random", or as they are."""
    n = graph.shape[0]
    if order == "rcm":
        number = reverse_cuthill_mckee(sparse.csr_matrix(graph), symmetric_mode=True)
    elif order == "x":
        number = np.argsort(points[:, 0])
    elif order == "random":
        number = rng.permutation(n)
    else:
        return graph
    return sparse.csr_array(graph[number][:, number])


def blocked(graph: CSRMatrix, dof: int) -> CSRMatrix:
    """Every entry as a dense dof x dof block."""
    if dof == 1:
        return graph
    return sparse.csr_array(sparse.bsr_array((np.ones((graph.nnz, dof, dof), np.float32), graph.indices, graph.indptr)).tocsr())


def elements(nodes: Any, n: int) -> CSRMatrix:
    """All nodes of an element coupled to one another: `nodes` (n_elements, nodes of each)."""
    each = nodes.shape[1]
    return from_pairs(np.repeat(nodes, each, axis=1).ravel(), np.tile(nodes, (1, each)).ravel(), (n, n))


def mesh(n: int, dims: int, dof: int, order: str, rng: np.random.Generator) -> CSRMatrix:
    """Linear elements on the Delaunay triangulation of random points in `dims` dimensions, `dof` unknowns a node."""
    points = rng.random((n, dims))
    found = elements(spatial.Delaunay(points).simplices, n)
    return blocked(ordered(found, order, rng, points), dof)


def quadratic(n: int, dof: int, mixed: bool, rng: np.random.Generator) -> CSRMatrix:
    """Quadratic triangles, `dof` unknowns a node; `mixed`: with a linear pressure as well, as Stokes' equations have
    it.
    """
    points = rng.random((n, 2))
    corners = spatial.Delaunay(points[np.argsort(points[:, 0])]).simplices
    sides = np.sort(corners[:, [[0, 1], [1, 2], [2, 0]]], axis=2).reshape(-1, 2)
    edges, middle = np.unique(sides[:, 0] * n + sides[:, 1], return_inverse=True)
    nodes = np.concatenate([corners, n + middle.reshape(-1, 3)], axis=1)
    velocity = blocked(ordered(elements(nodes, n + len(edges)), "rcm", rng), dof)
    if not mixed:
        return velocity
    each = np.repeat(nodes, 3, axis=1).ravel()
    coupling = from_pairs(np.tile(corners, (1, 6)).ravel(), each, (n, n + len(edges)))
    wide = sparse.csr_array(sparse.kron(coupling, np.ones((1, dof), np.float32)))
    return sparse.csr_array(sparse.block_array([[velocity, wide.T], [wide, None]], format="csr"))


def edge_elements(n: int, rng: np.random.Generator) -> CSRMatrix:
    """Unknowns on the edges of tetrahedra, as Maxwell's equations have them."""
    points = rng.random((n, 3))
    corners = spatial.Delaunay(points[np.argsort(points[:, 0])]).simplices
    ends = np.sort(corners[:, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]], axis=2).reshape(-1, 2)
    edges, number = np.unique(ends[:, 0].astype(np.int64) * n + ends[:, 1], return_inverse=True)
    return elements(number.reshape(-1, 6), len(edges))


def road(n: int, rng: np.random.Generator) -> CSRMatrix:
    """Crossings on an n x n grid with three of five streets, numbered tile by tile."""
    y, x = np.divmod(np.arange(n * n), n)
    number = np.empty(n * n, np.int64)
    number[np.lexsort((x, y, x // 64, y // 64))] = np.arange(n * n)
    right, down = (x < n - 1) & (rng.random(n * n) < 0.6), (y < n - 1) & (rng.random(n * n) < 0.6)
    at = np.arange(n * n)
    first = np.concatenate([at[right], at[down]])
    second = np.concatenate([at[right] + 1, at[down] + n])
    return symmetric(number[first], number[second], n * n, False)


def pose_graph(n: int, dof: int, closures: float, rng: np.random.Generator) -> CSRMatrix:
    """The Hessian of a path of poses with loop closures: `closures` a pose, most of them to near places."""
    n_closures = int(closures * n)
    later = rng.integers(1, n, n_closures)
    earlier = np.maximum(0, later - (rng.pareto(0.7, n_closures) * 20 + 2).astype(np.int64) % n)
    return blocked(symmetric(np.concatenate([np.arange(n - 1), later]), np.concatenate([np.arange(1, n), earlier]), n), dof)


def bundle(n_cameras: int, n_points: int, seen: int, jacobian: bool, rng: np.random.Generator) -> CSRMatrix:
    """Bundle adjustment: cameras of 6 unknowns, points of 3, each point seen `seen` times by neighbouring cameras."""
    point = np.repeat(np.arange(n_points), seen)
    camera = (point * n_cameras // n_points + rng.integers(0, max(2, n_cameras // 20), point.size)) % n_cameras
    row = np.arange(point.size)
    of_camera = sparse.kron(from_pairs(row, camera, (row.size, n_cameras)), np.ones((2, 6), np.float32))
    of_point = sparse.kron(from_pairs(row, point, (row.size, n_points)), np.ones((2, 3), np.float32))
    full = sparse.csr_array(sparse.hstack([of_camera, of_point], format="csr"))
    return full if jacobian else sparse.csr_array(full.T @ full)


def tomography(n: int, n_angles: int, rng: np.random.Generator) -> CSRMatrix:
    """Parallel rays through n x n pixels: a row a ray, its pixels those that points along it lie in."""
    angle = np.arange(n_angles) * np.pi / n_angles + 0.01
    offset = np.arange(n) - (n - 1) / 2
    along = np.arange(-0.75 * n, 0.75 * n, 0.5)
    x = offset[None, :, None] * np.cos(angle)[:, None, None] - along * np.sin(angle)[:, None, None] + n / 2
    y = offset[None, :, None] * np.sin(angle)[:, None, None] + along * np.cos(angle)[:, None, None] + n / 2
    inside = (x >= 0) & (x < n) & (y >= 0) & (y < n)
    row = np.broadcast_to(np.arange(n_angles * n).reshape(n_angles, n, 1), inside.shape)[inside]
    return from_pairs(row, y[inside].astype(np.int64) * n + x[inside].astype(np.int64), (n_angles * n, n * n))


def coarse(n: int, points: int, levels: int, dof: int, rng: np.random.Generator) -> CSRMatrix:
    """The operator of a coarse level of smoothed aggregation on an n^3 grid with stencils of 7 or 27 points."""
    make = generate.poisson7 if points == 7 else generate.stencil27
    matrix = sparse.csr_array(make(n, dtype="float32"))
    place = np.stack(np.meshgrid(*[np.arange(n)] * 3, indexing="ij"), axis=-1).reshape(-1, 3).astype(float)
    for _ in range(levels):
        matrix.data[:] = 1
        seeds = place[np.sort(rng.permutation(len(place))[: max(8, len(place) // 20)])]
        nearest = spatial.cKDTree(seeds).query(place)[1]
        tentative = from_pairs(np.arange(len(place)), nearest, (len(place), len(seeds)))
        smooth = sparse.csr_array(matrix @ tentative)
        matrix = sparse.csr_array(smooth.T @ sparse.csr_array(matrix @ smooth))
        place = seeds
    return blocked(matrix, dof)


def cloud(n: int, neighbours: int, order: str, rng: np.random.Generator) -> CSRMatrix:
    """Points in a cube coupled to all within a radius that gives about so many neighbours."""
    points = rng.random((n, 3))
    radius = (neighbours / n * 3 / (4 * np.pi)) ** (1 / 3)
    pairs = spatial.cKDTree(points).query_pairs(radius, output_type="ndarray")
    return ordered(symmetric(pairs[:, 0], pairs[:, 1], n), order, rng, points)


def circuit(n: int, rng: np.random.Generator) -> CSRMatrix:
    """Two or three near neighbours a node, and a few nets with thousands of them."""
    at = rng.integers(0, n, int(1.6 * n))
    to = np.clip(at + (rng.pareto(0.8, at.size) * 3 + 1).astype(np.int64) * rng.choice([-1, 1], at.size), 0, n - 1)
    nets = [rng.integers(0, n, size) for size in rng.integers(100, max(200, n // 30), 12)]
    hubs = np.concatenate([np.full(net.size, rng.integers(0, n)) for net in nets])
    return symmetric(np.concatenate([at, hubs]), np.concatenate([to, *nets]), n)


def web(n: int, per_row: int, rng: np.random.Generator) -> CSRMatrix:
    """Pages by host: most links near, some to popular pages; uneven rows."""
    lengths = np.minimum((rng.pareto(1.5, n) * per_row / 2).astype(np.int64) + 1, n // 4)
    row = np.repeat(np.arange(n), lengths)
    near = np.clip(row + (rng.standard_normal(row.size) * 60).astype(np.int64), 0, n - 1)
    popular = (n * rng.random(row.size) ** 4).astype(np.int64) * 7919 % n
    return from_pairs(row, np.where(rng.random(row.size) < 0.7, near, popular), (n, n))


def ratings(n_rows: int, n_cols: int, nnz: int, rng: np.random.Generator) -> CSRMatrix:
    """Users by items, the activity of both uneven."""
    row = (n_rows * rng.random(nnz) ** 2).astype(np.int64)
    col = (n_cols * rng.random(nnz) ** 3).astype(np.int64)
    return from_pairs(rng.permutation(n_rows)[row], rng.permutation(n_cols)[col], (n_rows, n_cols))


def band(n: int, half: int, per_row: int, rng: np.random.Generator) -> CSRMatrix:
    """A band, full (`per_row` 0) or with random entries."""
    if not per_row:
        row = np.repeat(np.arange(n), 2 * half + 1)
        col = row + np.tile(np.arange(-half, half + 1), n)
    else:
        row = np.repeat(np.arange(n), per_row)
        col = row + rng.integers(-half, half + 1, row.size)
    inside = (col >= 0) & (col < n)
    return from_pairs(row[inside], col[inside], (n, n))


def grid2(n: int, radius: int, cross: bool, rng: np.random.Generator) -> CSRMatrix:
    """A stencil on an n x n grid: a square of neighbours, or their cross."""
    steps = [(y, x) for y in range(-radius, radius + 1) for x in range(-radius, radius + 1) if not (cross and x and y)]
    y, x = np.divmod(np.arange(n * n), n)
    pairs = [((y + dy >= 0) & (y + dy < n) & (x + dx >= 0) & (x + dx < n), dy * n + dx) for dy, dx in steps]
    row = np.concatenate([np.flatnonzero(inside) for inside, _ in pairs])
    col = np.concatenate([np.flatnonzero(inside) + by for inside, by in pairs])
    return from_pairs(row, col, (n * n, n * n))


def masked(n: int, rng: np.random.Generator) -> CSRMatrix:
    """A 7-point stencil on the voxels of a ball with holes."""
    matrix = sparse.csr_array(generate.poisson7(n, dtype="float32"))
    place = np.stack(np.meshgrid(*[np.linspace(-1, 1, n)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    kept = np.flatnonzero(((place**2).sum(axis=1) < 1) & (np.sin(9 * place).prod(axis=1) < 0.2))
    return sparse.csr_array(matrix[kept][:, kept])


def covering(n_rows: int, n_cols: int, per_column: int, rng: np.random.Generator) -> CSRMatrix:
    """Set covering: few rows, many columns, each with a few entries; the lengths of rows are uneven."""
    col = np.repeat(np.arange(n_cols), per_column)
    row = (n_rows * rng.random(col.size) ** 1.7).astype(np.int64)
    return from_pairs(row, col, (n_rows, n_cols))


def staircase(n_stages: int, rows: int, cols: int, rng: np.random.Generator) -> CSRMatrix:
    """A linear program in stages, each coupled to the one before, and some rows over all of them."""
    row, col = [], []
    for k in range(n_stages):
        for of in (k, k - 1):
            size = rows * 4
            row.append(k * rows + rng.integers(0, rows, size))
            col.append(max(of, 0) * cols + rng.integers(0, cols, size))
    size = n_stages * cols // 2
    row.append(rng.integers(0, rows // 4 + 1, size))
    col.append(rng.integers(0, n_stages * cols, size))
    return from_pairs(np.concatenate(row), np.concatenate(col), (n_stages * rows, n_stages * cols))


def spins(n: int, rng: np.random.Generator) -> CSRMatrix:
    """A chain of n spins whose neighbours may swap."""
    state = np.arange(1 << n)
    row, col = [state], [state]
    for bit in range(n):
        other = (bit + 1) % n
        differ = (state >> bit ^ state >> other) & 1 == 1
        row.append(state[differ])
        col.append(state[differ] ^ (1 << bit | 1 << other))
    return from_pairs(np.concatenate(row), np.concatenate(col), (1 << n, 1 << n))


def lengths(n_rows: int, n_cols: int, mean: float, spread: float, longest: int, rng: np.random.Generator) -> CSRMatrix:
    """Random columns in rows of log-normal lengths."""
    found = np.exp(rng.standard_normal(n_rows) * spread)
    found = np.clip((found * mean / found.mean()).astype(np.int64), 1, min(longest, n_cols))
    row = np.repeat(np.arange(n_rows), found)
    return from_pairs(row, rng.integers(0, n_cols, row.size), (n_rows, n_cols))


def plain(matrix: CSRMatrix) -> CSRMatrix:
    """`matrix` with sorted columns, in the dtypes that all have."""
    matrix.sort_indices()
    parts = matrix.data.astype(np.float32), matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return sparse.csr_array(parts, shape=matrix.shape)
