"""The run of ``make bench-solve``: what it measures, its page, and that the matrices are positive definite."""

from __future__ import annotations

import contextlib
import json
import sys
import types

import numpy as np
import pytest
import scipy.sparse

from asv_bench.record import solve, solve_peers
from cvrarray import generate


def test_generated_matrices_are_made_definite():
    for csr in (generate.poisson7(5), generate.elast3(3), generate.rmat(7, 4), generate.uniform(90, 3)):
        found = solve.definite(csr)
        assert abs(found - found.T).max() <= 1e-15
        assert np.linalg.eigvalsh(found.toarray()).min() > 0


def test_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    csr = scipy.sparse.eye_array(80, format="csr") * 3 + scipy.sparse.eye_array(80, k=1) + scipy.sparse.eye_array(80, k=-1)
    path = tmp_path / "small.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(csr))
    monkeypatch.setattr(solve, "ITERATIONS", {"cpu": (1, 2, 2)})
    report = tmp_path / "report"
    assert solve.main([str(path), "--device", "cpu", "--turns", "2", "--report", str(report)]) == 0
    out = capsys.readouterr().out
    assert out.count("small") == 2  # two dtypes
    page = (report / "solve-cpu.md").read_text()
    assert "| small | float64 | 80 | 238 |" in page
    assert f"scipy {scipy.__version__}" in page
    figures = json.loads((report / "solve-cpu.json").read_text())
    assert set(figures["results"][0]["microseconds"]) >= {"ours", "ours, 16 columns", "scipy", "scipy, our array", "product"}
    assert (report / "solve-cpu.svg").read_text().startswith("<?xml")
    assert str(tmp_path) not in page + json.dumps(figures)


def test_a_peer_that_fails_is_left_out(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    path = tmp_path / "small.npz"
    scipy.sparse.save_npz(
        path, scipy.sparse.csr_array(scipy.sparse.diags_array([1.0, 3.0, 1.0], offsets=[-1, 0, 1], shape=(80, 80)))
    )
    monkeypatch.setattr(solve, "ITERATIONS", {"cpu": (1, 2, 2)})
    peers = solve.scipy_peers

    def with_another(csr, A, b):
        def fails(count):
            raise RuntimeError("no graph\ntoday")

        return peers(csr, A, b) | ({"another": fails} if csr.dtype == np.float32 else {})

    monkeypatch.setattr(solve, "scipy_peers", with_another)
    assert solve.main([str(path), "--device", "cpu", "--turns", "1", "--report", str(tmp_path)]) == 0
    assert "* another, small in float32: RuntimeError: no graph today" in (tmp_path / "solve-cpu.md").read_text()
    monkeypatch.setattr(solve, "ours", lambda A, b, is_brief: {"ours": peers})  # which fails for want of arguments
    with pytest.raises(TypeError):
        solve.main([str(path), "--device", "cpu", "--turns", "1"])


def test_errors(capsys):
    assert solve.main(["nothing", "--device", "cpu"]) == 2
    assert "is no file and no generated matrix" in capsys.readouterr().err
    assert solve.main(["poisson7", "--device", "cpu", "--turns", "0"]) == 2
    assert solve.main(["poisson7", "--device", "cpu", "--scale", "small,tiny"]) == 2
    assert "scale must be of full, medium, small; got 'tiny'" in capsys.readouterr().err


def test_speedup_is_over_the_fastest_peer():
    times = {"ours": 2.0, "ours, block-Jacobi": 1.0, "scipy": 8.0, "scipy, our array": 4.0, "product": 1.0}
    assert solve.speedup(times) == 2.0
    assert solve.speedup(times, ["scipy"]) == 4.0


class FakeWarp(types.ModuleType):
    """What the peer needs of Warp, on NumPy; graphs fail as `broken` says."""

    float32, float64 = np.float32, np.float64

    def __init__(self, broken: tuple[str, ...], ends_after: int = 10**9) -> None:
        super().__init__("warp")
        self.broken, self.ends_after, self.capturing, self.replays = broken, ends_after, False, 0
        self.sparse, self.optim = types.ModuleType("warp.sparse"), types.ModuleType("warp.optim")
        self.optim.linear = types.ModuleType("warp.optim.linear")
        self.sparse.bsr_from_triplets = lambda rows, cols, row, col, values: (rows, values.shape)
        self.optim.linear.preconditioner = lambda A, kind: kind
        self.optim.linear.cg = self.cg
        self.types = types.SimpleNamespace(vector=lambda size, kind: kind)

    def get_device(self, name):
        return name

    def array(self, part, dtype, device):
        return FakeArray(part)

    def zeros_like(self, of):
        return FakeArray(np.zeros_like(of.values))

    def synchronize_device(self, device):
        pass

    def capture_launch(self, graph):
        self.replays += 1

    def ScopedCapture(self, device, force_module_load):
        @contextlib.contextmanager
        def capture():
            if "whole" in self.broken:
                raise RuntimeError("CUDA error 901")
            self.capturing = True
            yield types.SimpleNamespace(graph=1)
            self.capturing = False

        return capture()

    def cg(self, A, b, x, *, maxiter, check_every, use_cuda_graph, run=True, **others):
        assert others == {"tol": 0.0, "atol": 0.0, "M": "diag"}
        done = min(maxiter, self.ends_after)

        def solve():
            if use_cuda_graph and "own" in self.broken:
                raise RuntimeError("CUDA error 900")
            return (done if check_every else FakeArray(np.array([done])), 0.0, 0.0)

        return solve() if run else solve


class FakeArray:
    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def numpy(self):
        return self.values

    def zero_(self):
        self.values[...] = 0


@pytest.fixture
def warp_peers(monkeypatch):
    def peers(*broken, **options):
        fake = FakeWarp(broken, **options)
        for name in ("warp", "warp.sparse", "warp.optim", "warp.optim.linear"):
            monkeypatch.setitem(sys.modules, name, {"warp": fake, "warp.sparse": fake.sparse}.get(name, fake.optim))
        monkeypatch.setitem(sys.modules, "warp.optim.linear", fake.optim.linear)
        csr = scipy.sparse.csr_array(np.kron(np.eye(4), np.ones((3, 3))))
        return fake, solve_peers.warp_peers(fake, csr, np.ones(12), 3, "cuda:0")

    return peers


@pytest.mark.slow
def test_warp_is_called_in_the_fastest_way_that_works(warp_peers):
    fake, peers = warp_peers()
    assert list(peers) == ["warp", "warp, every 50", "warp, blocks"]
    for solve_with in peers.values():
        solve_with(5), solve_with(5), solve_with(9)
        assert solve_with.remark == ""
    assert fake.replays == 10  # of the two that test on the device: each number tried once, and launched again
    fake, peers = warp_peers("whole")
    peers["warp"](5)
    error = "RuntimeError: CUDA error 901"
    assert peers["warp"].remark == f"not as one graph of the solve: {error}; not as one graph without a loop: {error}"
    fake, peers = warp_peers("own")
    peers["warp"](5)
    assert peers["warp"].remark == "not as one graph of the solve: RuntimeError: CUDA error 900"
    assert fake.replays == 2
    _, peers = warp_peers("whole", "own")
    for solve_with in peers.values():
        solve_with(5)
        assert solve_with.remark.endswith("not as a graph in each solve: RuntimeError: CUDA error 900")


@pytest.mark.slow
def test_warp_that_ends_early_is_no_peer(warp_peers):
    _, peers = warp_peers(ends_after=7)
    for solve_with in peers.values():
        with pytest.raises(RuntimeError, match="ended after 7 of 8 iterations"):
            solve_with(8)


def test_systems():
    found = solve.pose_graph(4, 5)
    assert found.shape == (120, 120)
    assert abs((found != 0) - (found != 0).T).sum() == 0
    assert set(np.diff(found.indptr)) == {30}  # a pose and four neighbours
    assert set(solve.SYSTEMS) == set(solve.DEFAULT["cuda"])


def test_iterations_end_soon_after_convergence():
    cpu = solve.devices.CPU
    quick = scipy.sparse.csr_array(scipy.sparse.diags_array([1.0, 30.0, 1.0], offsets=[-1, 0, 1], shape=(90, 90)))
    fewer, longest = solve.iterations_of(quick, cpu)
    assert 1 <= fewer < longest <= 15
    slow = scipy.sparse.csr_array(scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(900, 900)))
    assert solve.iterations_of(slow, cpu) == (3, 303)
