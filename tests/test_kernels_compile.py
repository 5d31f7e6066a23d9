"""Every kernel compiles for every architecture, without a GPU and without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cupy", reason="kernels are compiled through CuPy, which is not installed")

from cvrarray.gpu import (  # noqa: F401  each declares its kernels
    assembly,
    bbcsr,
    bbcsr_matmat,
    compiler,
    csr,
    cvr,
    cvr_matmat,
    distinct,
    gram,
    look,
    order,
    prefix,
    sampled,
    segments,
    statistics,
)
from cvrarray.linalg.gpu import (  # noqa: F401  likewise
    advance,
    aggregation,
    bicgstab,
    cg,
    gmres,
    lsmr,
    minres,
    persistent,
    refined,
    state,
    steps,
    vectors,
)

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
#: On other architectures than this one, what is not the first instantiation of a kernel is optimised little: that takes a
#: third of the time, and checks types, assertions, thread blocks, shared memory and instructions as well.
OPTIMISED = "sm_90"
LITTLE = ("--Ofast-compile=max",)
GROUP = 12  # instantiations a test: small enough to spread over workers
FILES = {kernel.file: [] for kernel in compiler.KERNELS}
for kernel in compiler.KERNELS:
    FILES[kernel.file] += kernel.instantiations()


def _kernel(name: str) -> str:
    return name.partition("<")[0]


def units():
    """File, instantiations, architecture and options of each test: every kernel once, on one architecture; the others are slow.

    Each program has every kernel of its file: a constant that only some of them use is worth no warning.
    """
    for file, names in FILES.items():
        one_of_each = list({_kernel(name): name for name in names}.values())
        others = [name for name in names if name not in one_of_each]
        for k, start in enumerate([None, *range(0, len(others), GROUP)]):
            some = others[start : start + GROUP] if k else []
            for architecture in ARCHITECTURES:
                yield pytest.param(
                    file,
                    (*some, *one_of_each),
                    architecture,
                    LITTLE if k and architecture != OPTIMISED else (),
                    id=f"{file}-{k}-{architecture}",
                    marks=() if not k and architecture == OPTIMISED else pytest.mark.slow,
                )


UNITS = list(units())


@pytest.mark.parametrize(("file", "names", "architecture", "options"), UNITS)
def test_compiles(file, names, architecture, options):
    """NVRTC alone is needed: `pip install nvidia-cuda-nvrtc`."""
    log = compile_for(architecture, compiler.source(file), f"{file}.cu", names, options)
    assert "warning" not in log, log
    assert not log.strip("\0\n "), log


def test_every_instantiation_is_compiled_for_every_architecture():
    wanted = {(file, name, architecture) for file, names in FILES.items() for name in names for architecture in ARCHITECTURES}
    assert wanted == {
        (file, name, architecture) for file, names, architecture, _ in (u.values for u in UNITS) for name in names
    }
    optimised = {(unit.values[0], name) for unit in UNITS for name in unit.values[1] if unit.values[2:] == (OPTIMISED, ())}
    assert optimised == {(file, name) for file, names in FILES.items() for name in names}
    by_default = {(unit.values[0], _kernel(name)) for unit in UNITS if not unit.marks for name in unit.values[1]}
    assert by_default == {(kernel.file, kernel.name) for kernel in compiler.KERNELS}


def compile_for(architecture: str, text: str, file: str, names: tuple[str, ...], options: tuple[str, ...] = ()) -> str:
    """NVRTC's log; an exception that holds it where it does not compile."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, file, (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        try:
            nvrtc.compileProgram(program, (f"-arch={architecture}", *compiler.OPTIONS, "-ftz=true", *options))
        except nvrtc.NVRTCError as error:
            raise AssertionError(f"{file} for {architecture}: {nvrtc.getProgramLog(program)}") from error
        assert nvrtc.getCUBIN(program)
        return nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


@pytest.mark.parametrize(("lanes", "held"), [(8, 4), (16, 2), (16, 4)])
def test_rows_of_x_stay_in_registers(lanes, held):
    """Where some lanes have a vector less: loads under a condition spilled 28 bytes a thread, and waited for each other."""
    name = f"bbcsr_matmat_rows<double, double, int, uint8, {lanes}, 2, {held}, 1, 8, true, false, uint32>"
    log = compile_for("sm_90", compiler.source("bbcsr_matmat_rows"), "rows.cu", (name,), ("--ptxas-options=-v",))
    (spilled,) = re.findall(r"(\d+) bytes spill stores", log)
    assert int(spilled) < 16


@pytest.mark.parametrize("place", ["kernels", "cvrarray/kernels"])
def test_a_second_copy_reads_its_own_kernels(tmp_path, place):
    """A checkout has them beside its package, a wheel in it. Another one may be installed too."""
    root = Path(__file__).parent.parent
    shutil.copytree(root / "cvrarray", tmp_path / "cvrarray", ignore=shutil.ignore_patterns("kernels", "__pycache__"))
    shutil.copytree(root / "kernels", tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / place / "prefix.cu").write_text("// of the second copy\n")
    script = "from cvrarray.gpu import compiler; print(compiler.source('prefix'))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.endswith("// of the second copy\n\n")


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


@pytest.mark.parametrize(
    ("file", "struct", "words"),
    [
        ("cg.cuh", "Column", state.WORDS),
        ("minres.cu", "Lanczos", minres.Launches.words),
        ("bicgstab.cu", "Stabilised", bicgstab.Launches.words),
        ("lsmr.cu", "Bidiagonal", lsmr.STATE.itemsize // 8),
    ],
)
def test_the_host_knows_the_words_of_a_columns_state(file, struct, words):
    fields = members(file, struct)
    assert sum(WORDS_OF[kind] for kind, _ in fields) == words
    if struct == "Bidiagonal":
        assert tuple(name for _, name in fields) == lsmr.STATE.names


def test_the_host_knows_where_a_course_is():
    names = [name for _, name in members("methods.cuh", "Course")]
    assert [len(names) + place for place in (steps.NORM, steps.VERIFY_AT, steps.ITERATIONS, steps.LIMIT)] == [
        names.index(name) for name in ("norm", "verify_at", "iterations", "limit")
    ]
    assert (names[steps.REASON], names[steps.MOVES]) == ("reason", "moves")
    scalars = [name for _, name in members("minres.cu", "Lanczos")]
    assert [scalars[place] for place in (minres.BETA, minres.PHI_BAR, minres.C)] == ["beta", "phi_bar", "c"]
    assert members("bicgstab.cu", "Stabilised")[0] == ("complex128", "rho")


WORDS_OF = {"double": 1, "int64": 1, "complex128": 2, "Course": 6}


def members(file: str, struct: str) -> list[tuple[str, str]]:
    """Type and name of each member of a struct of doubles, whole numbers and complex ones."""
    text = (Path(compiler.__file__).parents[2] / "kernels" / file).read_text()
    body = re.sub(r"//.*", "", re.search(rf"struct {struct} {{(.*?)\n}};", text, re.S)[1])
    lines = re.findall(rf"^\s*({'|'.join(WORDS_OF)}) ([a-z_0-9, ]+);", body, re.M)
    return [(kind, name.strip()) for kind, names in lines for name in names.split(",")]
