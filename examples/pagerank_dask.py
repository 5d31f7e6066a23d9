"""PageRank of a graph that need not fit in memory: links in any order -> a store on disk -> power iteration with Dask.

    python examples/pagerank_dask.py --log2-nodes 20 --links-per-node 16

Each rank is (1 - d) / n plus d times what the nodes that link to it pass on: their rank over the number of their links.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import cvrarray


def pagerank(links: da.Array, damping: float = 0.85, rtol: float = 1e-6, maxiter: int = 200) -> tuple[da.Array, int]:
    """The rank of every node, and how many iterations it took.

    Parameters
    ----------
    links : (n, n) dask array of our arrays
        ``links[i, j]`` counts the links from j to i. Persist it first where it fits in (the workers') memory.
    damping : float
    rtol : float
        The largest change, all nodes together, of the ranks (which sum to 1) in the last iteration.

    Returns
    -------
    (n,) dask array of float64, int
    """
    n, rows = links.shape[0], links.chunks[0]
    out = links.sum(axis=0).rechunk((rows,)).persist()  # links of each node
    share = da.where(out > 0, 1 / da.maximum(out, 1), 0).persist()
    rank = da.full(n, 1 / n, chunks=(rows,))
    for iteration in range(1, maxiter + 1):  # noqa: B007
        # one chunk of x for the panels of whole rows: else Dask would cut the matrix to fit the vector
        passed_on = links @ (rank * share).rechunk(-1)
        stuck = da.where(out > 0, 0, rank).sum()  # nodes without links pass on to all
        new = damping * (passed_on + stuck / n) + (1 - damping) / n
        new, change = dask.persist(new, abs(new - rank).sum())
        rank = new
        if float(change.compute()) < rtol:
            break
    return rank, iteration


def random_links(log2_nodes: int, links_per_node: int, piece: int = 1 << 20, seed: int = 0):
    """A graph with few hubs and many leaves: triplets (to, from, 1.0) of a random R-MAT graph, piece by piece."""
    rng = np.random.default_rng(seed)
    left = links_per_node << log2_nodes
    while left:
        size = min(piece, left)
        row, col = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for _ in range(log2_nodes):
            quadrant = np.searchsorted([0.57, 0.76, 0.95], rng.random(size))
            row, col = 2 * row + quadrant // 2, 2 * col + quadrant % 2
        yield row, col, np.ones(size)
        left -= size


def main() -> None:
    """Write the graph's store, if it is not there, and rank it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log2-nodes", type=int, default=18)
    parser.add_argument("--links-per-node", type=int, default=16)
    parser.add_argument("--store", type=Path, help="where the graph is kept; default: in the folder of temporary files")
    parser.add_argument("--chunks", default="64 MiB", help="bytes of a panel")
    parser.add_argument("--device", help="cpu or cuda; default: the GPU when there is one")
    parser.add_argument("--persist", action="store_true", help="keep all panels in memory: the disk is read once")
    arguments = parser.parse_args()

    n = 1 << arguments.log2_nodes
    links = random_links(arguments.log2_nodes, arguments.links_per_node)
    name = f"rmat-{arguments.log2_nodes}-{arguments.links_per_node}"
    store = arguments.store or Path(tempfile.gettempdir()) / f"{name}.store"
    options = {"chunks": arguments.chunks, "device": arguments.device}
    cvrarray.to_store(links, store, shape=(n, n), resume=True, name=name, **options)  # nothing where it is complete
    print(f"{store}: kept for the next run")
    matrix = cvrarray.open_store(store, device=arguments.device)
    if arguments.persist:
        matrix = matrix.persist()
    rank, iterations = pagerank(matrix)
    rank = rank.compute()
    best = rank.argsort()[::-1][:5]
    print(f"{matrix}\n{iterations} iterations; ranks sum to {float(rank.sum()):.6f}")
    for node in best:
        print(f"node {int(node):>10}  rank {float(rank[node]):.3e}")


if __name__ == "__main__":
    main()
