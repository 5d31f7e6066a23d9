"""The peers of ``make bench-solve``: conjugate gradients of SciPy, CuPy and NVIDIA Warp, called as well as they can be."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from cvrarray.cli import sources
from cvrarray.cli.table import in_a_line
from cvrarray.core import devices

#: Runs so many iterations.
Solve = Callable[[int], Any]


def scipy_peers(csr: Any, A: Any, b: Any) -> dict[str, Solve]:
    """SciPy's cg."""
    from scipy.sparse.linalg import LinearOperator, cg

    inverse = 1 / csr.diagonal()
    M = LinearOperator(csr.shape, matvec=lambda r: inverse * r, dtype=csr.dtype)
    return {
        "scipy": lambda count: cg(csr, b, rtol=0, maxiter=count, M=M),
        "scipy, our array": lambda count: cg(A, b, rtol=0, maxiter=count, M=M),
    }


def gpu_peers(csr: Any, b: Any, size: int, device: devices.Device) -> dict[str, Solve]:
    """CuPy's cg, and Warp's where it is installed; Warp's raises what keeps it from being imported."""
    from cupyx.scipy.sparse.linalg import LinearOperator, cg

    there = sources.place(csr, device)
    inverse = 1 / devices.move(csr.diagonal(), device)
    M = LinearOperator(csr.shape, matvec=lambda r: inverse * r, dtype=csr.dtype)
    found: dict[str, Solve] = {"cupy": lambda count: cg(there, b, rtol=0, atol=0, maxiter=count, M=M)}
    if find_spec("warp") is None:
        return found
    try:
        import warp

        warp.config.quiet = True
        warp.init()
    except Exception as reason:
        return found | {"warp": partial(_raise, reason)}
    return found | warp_peers(warp, csr, b.get(), size, str(device))


def _raise(reason: Exception, count: int) -> Any:
    raise reason


def warp_peers(warp: Any, csr: Any, b: np.ndarray, size: int, device: str) -> dict[str, Solve]:
    """Warp's cg: with the test on the device, and with one every 50 iterations; and over blocks of `size`."""
    import scipy.sparse

    row = np.repeat(np.arange(csr.shape[0], dtype=np.int32), np.diff(csr.indptr))
    triplets = row, csr.indices, csr.data
    found: dict[str, Solve] = {
        "warp": Warp(warp, triplets, b, device, every=0),
        "warp, every 50": Warp(warp, triplets, b, device, every=50),
    }
    if size > 1 and csr.shape[0] % size == 0:
        blocks = scipy.sparse.bsr_array(csr, blocksize=(size, size))
        row = np.repeat(np.arange(len(blocks.indptr) - 1, dtype=np.int32), np.diff(blocks.indptr))
        found["warp, blocks"] = Warp(warp, (row, blocks.indices, blocks.data), b, device, every=0)
    return found


class Warp:
    """Warp's cg with one matrix, prepared when it is first called; it looks at the residual `every` so many iterations,
    or for 0 on the device.

    Ways to launch it are tried in turn, fastest first: the whole solve captured once as a CUDA graph, with a loop or
    without, a graph that Warp captures in each solve, and none. `remark` says which of them failed, and why.
    """

    def __init__(
        self,
        warp: Any,
        triplets: tuple[Any, Any, Any],
        b: np.ndarray,
        device: str,
        every: int,
        prepare: Callable[[Any], Any] = lambda A: A,
    ) -> None:
        """`prepare` makes of Warp's matrix what is solved with."""
        self._warp, self._triplets, self._b, self._every, self._as_system = warp, triplets, b, every, prepare
        self._place = warp.get_device(device)
        self._ways: list[tuple[str, Callable[[int], Callable[[], Any]]]] = [
            ("a graph in each solve", self._own_graph),
            ("launches", self._no_graph),
        ]
        if not every:
            self._ways[:0] = [("one graph of the solve", self._one_graph), ("one graph without a loop", self._unrolled)]
        self._prepared: dict[int, Callable[[], Any]] = {}
        self._system: Any = None
        self.remark = ""

    def __call__(self, count: int) -> Any:
        """Run `count` iterations from 0."""
        if self._system is None:
            self._prepare()
        while count not in self._prepared:
            name, way = self._ways[0]
            try:
                self._prepared[count] = self._tried(way(count), count)
            except Exception as reason:
                if len(self._ways) == 1:
                    raise
                self.remark += f"{'; ' if self.remark else ''}not as {name}: {in_a_line(reason)}"
                self._ways.pop(0)
                self._prepared.clear()
        self._x.zero_()
        return self._prepared[count]()

    def _prepare(self) -> None:
        """The matrix, vectors, and everything that Warp compiles and loads, which it cannot within a capture."""
        import warp.optim.linear
        import warp.sparse

        wp, (row, column, data) = self._warp, self._triplets
        size, n = 1 if data.ndim == 1 else data.shape[1], len(self._b)
        kind = wp.float32 if data.dtype == np.float32 else wp.float64
        arrays = [
            wp.array(np.ascontiguousarray(part), dtype=t, device=self._place)
            for part, t in ((row, int), (column.astype(np.int32), int), (data, kind))
        ]
        A = warp.sparse.bsr_from_triplets(n // size, n // size, *arrays)
        entry = kind if size == 1 else wp.types.vector(size, kind)
        b = wp.array(self._b.reshape(-1, size) if size > 1 else self._b, dtype=entry, device=self._place)
        self._x = wp.zeros_like(b)
        self._system = self._as_system(A), b, self._x
        self._options = {"tol": 0.0, "atol": 0.0, "M": warp.optim.linear.preconditioner(A, "diag")}
        self._cg = warp.optim.linear.cg
        self._cg(*self._system, **self._options, maxiter=2, check_every=min(self._every, 1), use_cuda_graph=False)
        wp.synchronize_device(self._place)

    def _state(self, count: int, use_cuda_graph: bool) -> Callable[[], Any]:
        """A solve that holds its memory."""
        found: Callable[[], Any] = self._cg(
            *self._system,
            **self._options,
            maxiter=count,
            check_every=self._every,
            use_cuda_graph=use_cuda_graph,
            run=False,
        )
        return found

    def _one_graph(self, count: int) -> Callable[[], Any]:
        """The whole solve, captured once: its loop is a conditional node."""
        return self._captured(self._state(count, use_cuda_graph=True))

    def _unrolled(self, count: int) -> Callable[[], Any]:
        """The whole solve, captured once, kernel by kernel."""
        return self._captured(self._state(count, use_cuda_graph=False))

    def _captured(self, state: Callable[[], Any]) -> Callable[[], Any]:
        state()
        gc.collect()  # what is freed while a graph is captured may invalidate it
        with self._warp.ScopedCapture(device=self._place, force_module_load=False) as capture:
            numbers = state()

        def launch(held: Any = state) -> Any:  # the graph needs the state's memory
            self._warp.capture_launch(capture.graph)
            return numbers

        return launch

    def _own_graph(self, count: int) -> Callable[[], Any]:
        """Warp captures what it repeats, in each solve."""
        gc.collect()
        return self._state(count, use_cuda_graph=True)

    def _no_graph(self, count: int) -> Callable[[], Any]:
        """Kernel by kernel."""
        return self._state(count, use_cuda_graph=False)

    def _tried(self, solve: Callable[[], Any], count: int) -> Callable[[], Any]:
        """The solve, when it has done what was asked for once."""
        self._x.zero_()
        done = solve()[0]
        self._warp.synchronize_device(self._place)
        done = int(done if self._every else done.numpy()[0])
        if done < count:
            raise RuntimeError(f"ended after {done} of {count} iterations")
        if not np.isfinite(self._x.numpy()).all():
            raise RuntimeError("the solution is not finite")
        return solve
