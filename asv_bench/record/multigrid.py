"""Multigrid beside Jacobi: setup, update, iterations and time to 1e-8 of systems of many sizes; and pyamg where it is there.

  python -m asv_bench.record.multigrid [SYSTEM ...] [--sizes small|medium|large] [--device cuda]

setup         ms of ``multigrid(A)`` from an array on the device, and of pyamg's ``smoothed_aggregation_solver``
update        ms of ``M.update(A)``
iterations    of ``cg`` to 1e-8 of b: ours; with pyamg's hierarchy in our cycle; Jacobi
solve         ms of that solve, the second of one solver; medians of turns. pyamg: SciPy's cg with its own cycle
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import cvrarray
from cvrarray import linalg
from cvrarray.cli.table import render
from cvrarray.core import devices
from cvrarray.linalg.multigrid import STRENGTH

TOLERANCE = 1e-8
#: Nodes along an edge of the cube.
SIZES = {"small": 24, "medium": 100, "large": 200}
ELASTIC = {"small": 12, "medium": 41, "large": 75}
TURNS = 3


def diffusion(
    shape: tuple[int, ...], weights: tuple[float, ...] = (), jump: float = 1.0, fixed: bool = True, seed: int = 0
) -> Any:
    """The finite-volume matrix of ``-div(c grad u)`` on cells. c is `weights` along the axes, times `jump` in half of the cubes
    of 8^d cells, at random; between cells it is the harmonic mean. `fixed`: u is 0 around; else nothing flows there, and the
    matrix is singular.
    """
    import scipy.sparse as sp

    rng = np.random.default_rng(seed)
    coarse = rng.random(tuple(-(-n // 8) for n in shape)) < 0.5
    c = np.where(coarse, jump, 1.0)
    for axis in range(len(shape)):
        c = np.repeat(c, 8, axis)
    c = c[tuple(map(slice, shape))]
    number = np.arange(c.size).reshape(shape)
    matrix = sp.csr_array((c.size, c.size))
    diagonal = np.zeros(shape)
    for axis, n in enumerate(shape):
        weight = weights[axis] if weights else 1.0
        left, right = (np.take(c, range(*part), axis) for part in ((0, n - 1), (1, n)))
        flow = weight * 2 * left * right / (left + right)
        i, j = (np.take(number, range(*part), axis).ravel() for part in ((0, n - 1), (1, n)))
        edges = sp.coo_array((flow.ravel(), (i, j)), shape=matrix.shape)
        matrix = matrix - edges - edges.T
        for k in (0, n - 1) if fixed else ():
            place = tuple(k if a == axis else slice(None) for a in range(len(shape)))
            diagonal[place] += 2 * weight * c[place]
    matrix = sp.csr_array(matrix)
    return sp.csr_array(matrix + sp.diags_array(diagonal.ravel() - np.asarray(matrix.sum(axis=1)).ravel()))


def pressure(n: int) -> Any:
    """The pressure matrix of a flow through a channel: cells that are flat near two walls, an obstacle, one open end."""
    import scipy.sparse as sp

    sides = [np.full(2 * n, 1 / n), np.geomspace(1 / (20 * n), 1 / n, n // 2), np.full(n // 2, 1 / n)]
    sides[1] = np.concatenate([sides[1], sides[1][::-1]])
    shape = tuple(side.size for side in sides)
    volume = sides[0][:, None, None] * sides[1][:, None] * sides[2]
    number = np.full(shape, -1)
    solid = np.zeros(shape, bool)
    solid[n // 2 : n // 2 + n // 4, n // 3 : 2 * n // 3] = True
    number[~solid] = np.arange((~solid).sum())
    total = int((~solid).sum())
    matrix, diagonal = sp.csr_array((total, total)), np.zeros(total)
    for axis, side in enumerate(sides):
        along = (1,) * axis + (-1,) + (1,) * (2 - axis)
        face = volume / side.reshape(along)
        before, after = (tuple(part if a == axis else slice(None) for a in range(3)) for part in (slice(-1), slice(1, None)))
        flow = face[before] * 2 / (side[:-1] + side[1:]).reshape(along)
        inside = (number[before] >= 0) & (number[after] >= 0)
        edges = (flow[inside], (number[before][inside], number[after][inside]))
        edges = sp.coo_array(edges, shape=matrix.shape)
        matrix = matrix - edges - edges.T
        if axis == 0:  # the outlet
            end = number[-1]
            diagonal[end.ravel()] += (face[-1] * 2 / side[-1]).ravel()
    matrix = sp.csr_array(matrix)
    return sp.csr_array(matrix + sp.diags_array(diagonal - np.asarray(matrix.sum(axis=1)).ravel()))


def graph(n: int, seed: int = 0) -> Any:
    """The Laplacian, plus a ten-thousandth of its diagonal's mean, of points in a square with their 6 nearest neighbours."""
    import scipy.sparse as sp
    from scipy.spatial import cKDTree

    rng = np.random.default_rng(seed)
    points = rng.random((n, 2))
    near = cKDTree(points).query(points, k=7)[1][:, 1:]
    edges = sp.coo_array((np.ones(near.size), (np.repeat(np.arange(n), 6), near.ravel())), shape=(n, n))
    weight = sp.csr_array(edges + edges.T)
    degree = np.asarray(weight.sum(axis=1)).ravel()
    return sp.csr_array(sp.diags_array(degree + 1e-4 * degree.mean()) - weight)


def elasticity(n: int) -> tuple[Any, np.ndarray]:
    """Linear elasticity (Poisson ratio 0.3) on a beam of 2 n x n x n / 2 cubes of six tetrahedra each, held at one end:
    the matrix, and the coordinates of its nodes.
    """
    import scipy.sparse as sp

    counts = np.array([2 * n, n, max(n // 2, 2)])
    grid = np.stack(np.meshgrid(*(np.arange(m + 1) for m in counts), indexing="ij"), -1).reshape(-1, 3)
    steps = np.array([np.prod(counts[1:] + 1), counts[2] + 1, 1])
    corner = (np.stack(np.meshgrid(*(np.arange(m) for m in counts), indexing="ij"), -1).reshape(-1, 3) * steps).sum(1)
    elements = []
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        offsets = np.concatenate([[0], np.cumsum(steps[list(order)])])
        elements.append(corner[:, None] + offsets)
    nodes = np.concatenate(elements)
    place = grid / n
    edges = place[nodes[:, 1:]] - place[nodes[:, :1]]
    inverse = np.linalg.inv(edges)  # columns are the gradients of barycentric coordinates 1 to 3
    gradients = np.concatenate([-inverse.sum(axis=2, keepdims=True), inverse], axis=2).transpose(0, 2, 1)
    volume = abs(np.linalg.det(edges)) / 6
    lame, mu = 0.3 / (1.3 * 0.4), 1 / 2.6
    outer = gradients[:, :, None, :, None] * gradients[:, None, :, None, :]  # element, a, b, i, j
    inner = (gradients[:, :, None] * gradients[:, None]).sum(-1)
    blocks = lame * outer + mu * outer.swapaxes(3, 4) + mu * inner[..., None, None] * np.eye(3)
    blocks *= volume[:, None, None, None, None]
    rows, cols = (
        3 * np.broadcast_to(part, (len(nodes), 4, 4))[..., None, None] for part in (nodes[:, :, None], nodes[:, None])
    )
    rows, cols = rows + np.arange(3)[:, None], cols + np.arange(3)
    matrix = sp.coo_array(
        (blocks.ravel(), (np.broadcast_to(rows, blocks.shape).ravel(), np.broadcast_to(cols, blocks.shape).ravel()))
    )
    free = np.flatnonzero(grid[:, 0] > 0)
    unknowns = (3 * free[:, None] + np.arange(3)).ravel()
    return sp.csr_array(sp.csr_array(matrix)[unknowns][:, unknowns]), place[free]


def systems(size: str) -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    """Matrix and keywords of multigrid for each system."""
    n = SIZES[size]
    scalar: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
        "stencil7": lambda: (diffusion((n,) * 3), {}),
        "jump": lambda: (diffusion((n,) * 3, jump=1e4), {}),
        "anisotropy": lambda: (diffusion((n,) * 3, (1.0, 1.0, 1e-3)), {}),
        "graph": lambda: (graph(n**3), {}),
        "pressure": lambda: (pressure(n), {}),
    }
    return scalar | {"elasticity": lambda: _elastic(ELASTIC[size])}


def _elastic(n: int) -> tuple[Any, dict[str, Any]]:
    matrix, place = elasticity(n)
    return matrix, {"near_nullspace": linalg.rigid_body_modes(place), "block_size": 3}


def seconds(device: devices.Device, work: Callable[[], Any], turns: int = TURNS) -> tuple[float, Any]:
    """The median of turns after a first one, and what the last gave."""
    found, times = work(), []
    for _ in range(turns):
        device.wait()
        start = time.perf_counter()
        found = work()
        device.wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times), found


def measured(name: str, csr: Any, keywords: dict[str, Any], device: devices.Device, with_pyamg: bool) -> dict[str, Any]:
    """Everything about one system."""
    with device.use():
        A = cvrarray.asarray(csr, device=str(device))
        b = devices.move(np.random.default_rng(0).standard_normal(csr.shape[0]), device)
        given = dict(keywords)
        if "near_nullspace" in given:
            given["near_nullspace"] = devices.move(given["near_nullspace"], device)
        setup, M = seconds(device, lambda: linalg.multigrid(A, **given))
        table = repr(M)
        update, _ = seconds(device, lambda: M.update(A))
        found = {"name": name, "rows": csr.shape[0], "nnz": int(csr.nnz), "setup": 1e3 * setup, "update": 1e3 * update}
        found["table"] = table + "\n update:" + repr(M).splitlines()[-1]
        for label, preconditioner in (("multigrid", M), ("single", M.astype(np.float32)), ("jacobi", "jacobi")):
            solver = linalg.CG(A, M=preconditioner, rtol=TOLERANCE)
            taken, solved = seconds(device, partial(solver.solve, b))
            found[label] = {"ms": 1e3 * taken, "iterations": solved.iterations, "converged": bool(solved.converged)}
        if with_pyamg:
            found["pyamg"] = beside(csr, keywords, A, b, device)
    return found


def beside(csr: Any, keywords: dict[str, Any], A: Any, b: Any, device: devices.Device) -> dict[str, Any]:
    """pyamg with the same settings, on the host."""
    import pyamg
    import scipy.sparse as sp

    matrix = sp.csr_matrix(csr)
    theta = 0.0 if "near_nullspace" in keywords else STRENGTH
    how = {"max_coarse": 200, "strength": [("symmetric", {"theta": theta / 2**k}) for k in range(20)]}
    if "near_nullspace" in keywords:
        matrix, how["B"] = matrix.tobsr((3, 3)), keywords["near_nullspace"]
    start = time.perf_counter()
    hierarchy = pyamg.smoothed_aggregation_solver(matrix, **how)
    setup = time.perf_counter() - start
    cycle = hierarchy.aspreconditioner()
    count: list[Any] = []
    host = devices.move(b, devices.CPU)
    start = time.perf_counter()
    sp.linalg.cg(matrix, host, rtol=TOLERANCE, M=cycle, callback=count.append)
    solve = time.perf_counter() - start
    ours = linalg.CG(A, M=linalg.multigrid(hierarchy, device=str(device)), rtol=TOLERANCE).solve(b)
    own = {"setup": 1e3 * setup, "ms": 1e3 * solve, "own_iterations": len(count)}
    return own | {"iterations": ours.iterations, "complexity": hierarchy.operator_complexity()}


def main(arguments: list[str] | None = None) -> None:
    """Print a table, and write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM")
    parser.add_argument("--sizes", choices=SIZES, default="medium")
    parser.add_argument("--device")
    parser.add_argument("--tables", action="store_true", help="print each hierarchy too")
    parser.add_argument("--json", metavar="PATH")
    given = parser.parse_args(arguments)
    device = devices.default() if given.device is None else devices.parse(given.device)
    with_pyamg, all_found, lines = find_spec("pyamg") is not None and given.sizes != "large", [], []
    for name, make in systems(given.sizes).items():
        if given.systems and name not in given.systems:
            continue
        found = measured(name, *make(), device, with_pyamg)
        all_found.append(found)
        numbers = [f"{found[part]:.1f}" for part in ("setup", "update")]
        for part in ("multigrid", "single", "jacobi"):
            numbers += [str(found[part]["iterations"]) + ("" if found[part]["converged"] else "!"), f"{found[part]['ms']:.1f}"]
        if "pyamg" in found:
            numbers += [str(found["pyamg"]["iterations"]), f"{found['pyamg']['setup']:.0f}", f"{found['pyamg']['ms']:.0f}"]
        lines.append([name, f"{found['rows']:,}", *numbers])
        if given.tables:
            print(found["table"], flush=True)
    heads = ["system", "rows", "setup", "update", "its", "solve", "its f4", "solve f4", "its Jacobi", "solve Jacobi"]
    heads += ["its pyamg's", "setup pyamg", "solve pyamg"] if with_pyamg else []
    print(render(heads, lines))
    if given.json:
        with open(given.json, "w") as file:
            json.dump(all_found, file, indent=1)


if __name__ == "__main__":
    main()
