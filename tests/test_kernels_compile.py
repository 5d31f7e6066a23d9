"""Every kernel compiles for every architecture, without a GPU and without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("cupy", reason="kernels are compiled through CuPy, which is not installed")
from cvrarray.gpu import bbcsr, compiler, csr, cvr  # noqa: F401  each declares its kernels

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
GROUP = 12  # instantiations a test: small enough to spread over workers
FILES = {kernel.file: [] for kernel in compiler.KERNELS}
for kernel in compiler.KERNELS:
    FILES[kernel.file] += kernel.instantiations()
UNITS = [(file, tuple(names[start : start + GROUP])) for file, names in FILES.items() for start in range(0, len(names), GROUP)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("file", "names"), UNITS, ids=[f"{file}-{k}" for k, (file, _) in enumerate(UNITS)])
def test_compiles(file, names, architecture):
    """NVRTC alone is needed: `pip install nvidia-cuda-nvrtc`."""
    log = compile_for(architecture, compiler.source(file), f"{file}.cu", names)
    assert "warning" not in log, log
    assert not log.strip("\0\n "), log


def compile_for(architecture: str, text: str, file: str, names: tuple[str, ...]) -> str:
    """NVRTC's log; an exception that holds it where it does not compile."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, file, (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        options = (f"-arch={architecture}", *compiler.OPTIONS, "-ftz=true")
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            raise AssertionError(f"{file} for {architecture}: {nvrtc.getProgramLog(program)}") from error
        assert nvrtc.getCUBIN(program)
        return nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


def test_no_generic_lambdas():
    """NVRTC 13.0 takes some of them for host functions; the newest, which is what is installed here, does not."""
    kernels = Path(__file__).parent.parent / "kernels"
    found = [path.name for path in kernels.glob("*.cu*") if re.search(r"\[[&=]?\]\s*\([^)]*\bauto\b", path.read_text())]
    assert not found


def test_every_kernel_is_covered():
    """A kernel that nothing instantiates would be compiled for the first time at a user's."""
    kernels = Path(__file__).parent.parent / "kernels"
    written = {
        (path.stem, name)
        for path in kernels.glob("*.cu*")
        for name in re.findall(r"__global__\s+(?:__launch_bounds__\(.*\)\s+)?void\s+(\w+)\(", path.read_text())
    }
    assert len(written) > 30
    assert written == {(kernel.file, kernel.name) for kernel in compiler.KERNELS}
    assert all(kernel.instantiations() for kernel in compiler.KERNELS)


def test_a_broken_kernel_is_noticed():
    """The check itself: errors raise, warnings stand in the log."""
    with pytest.raises(AssertionError, match="identifier"):
        compile_for("sm_90", "template <class T> __global__ void k(T* y) { *y = z; }", "broken.cu", ("k<int>",))
    log = compile_for("sm_90", "template <class T> __global__ void k(T* y) { int unused; }", "unused.cu", ("k<int>",))
    assert "warning" in log
