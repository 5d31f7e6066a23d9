"""Measurements of a robot that walks through streets, for the page on solvers."""

import numpy as np


def manhattan(n_poses: int, noise: float = 0.02, seed: int = 0) -> str:
    """A pose graph as text in the g2o format: a robot in streets on a grid, measured from pose to pose.

    The robot moves by 1 and may turn by 90 degrees at each crossing; where it comes to a crossing again, it measures the
    pose that it had there last. ``VERTEX_SE2 id x y theta`` are the poses that follow from its odometry alone, which
    drift; ``EDGE_SE2 i j dx dy dtheta`` and the upper triangle of a 3 x 3 information matrix are the measurements.

    Source: R. Kuemmerle, G. Grisetti, H. Strasdat, K. Konolige, W. Burgard, "g2o: A General Framework for Graph
    Optimization", ICRA 2011.
    """
    rng = np.random.default_rng(seed)
    turns = rng.choice([-1, 0, 0, 0, 1], n_poses)
    heading = np.concatenate([[0], np.cumsum(turns)[:-1]])[:n_poses]
    steps = np.stack([np.array([1, 0, -1, 0])[heading % 4], np.array([0, 1, 0, -1])[heading % 4]], axis=1)
    places = np.concatenate([np.zeros((1, 2), int), np.cumsum(steps, axis=0)[:-1]])[:n_poses]
    pairs = [(k, k + 1) for k in range(n_poses - 1)]
    seen: dict[tuple[int, ...], int] = {}
    for k, place in enumerate(map(tuple, places.tolist())):
        if k - seen.get(place, k) > 1:
            pairs.append((seen[place], k))
        seen[place] = k
    first, second = np.array(pairs, int).reshape(-1, 2).T
    angle = heading * np.pi / 2
    way = places[second] - places[first]
    cos, sin = np.cos(angle[first]), np.sin(angle[first])
    measured = np.stack([cos * way[:, 0] + sin * way[:, 1], cos * way[:, 1] - sin * way[:, 0], angle[second] - angle[first]], 1)
    measured += noise * rng.standard_normal(measured.shape)
    measured[:, 2] = (measured[:, 2] + np.pi) % (2 * np.pi) - np.pi
    pose, lines = np.zeros(3), []
    for k in range(n_poses):
        lines.append(f"VERTEX_SE2 {k} {pose[0]:.6f} {pose[1]:.6f} {pose[2]:.6f}")
        if k + 1 < n_poses:
            x, y, turn = measured[k]
            c, s = np.cos(pose[2]), np.sin(pose[2])
            pose = np.array([pose[0] + c * x - s * y, pose[1] + s * x + c * y, pose[2] + turn])
    weight = 1 / noise**2 if noise else 1.0
    for (i, j), (x, y, turn) in zip(pairs, measured, strict=True):
        lines.append(f"EDGE_SE2 {i} {j} {x:.6f} {y:.6f} {turn:.6f} {weight:g} 0 0 {weight:g} 0 {weight:g}")
    return "".join(f"{line}\n" for line in lines)
