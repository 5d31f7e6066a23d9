"""The code is that of docs/architecture.md: folders, one-way imports, a light import, documented names."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import cvrarray

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cvrarray"
MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("*.py"))
HEAVY = ("torch", "dask", "cupy", "numba", "scipy", "sparse", "matplotlib", "tqdm", "skfem")

LAYERS = [  # a module imports from its own layer and from those before it
    {"core"},
    {"cpu", "gpu"},
    {"input"},
    {"array"},
    {"cvr", "bbcsr"},
    {"formats"},
    {"choice"},
    {"linalg"},
    {"torch"},
    {"files"},
    {"store"},
    {"dask"},
    {"cli"},
]
NOT_LAYERED = {"generate", "__init__", "__main__", "_format", "_tables", "_transposed"}  # the front, and old pickles' names


def layer(module: str) -> int | None:
    """Number of the layer that a module of ours lies in; None for what stands beside them."""
    name = module.split(".")[1]
    return None if name in NOT_LAYERED else next(k for k, names in enumerate(LAYERS) if name in names)


def source(module: str) -> ast.Module:
    return ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())


def imports(module: str) -> set[str]:
    """The modules of ours (files, not folders) that a module names in any import statement, also inside functions."""
    package = module.split(".")[:-1]
    found = set()
    for node in ast.walk(source(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{target}.{alias.name}" for alias in node.names} | {target}
    return found & set(MODULES)


@pytest.mark.parametrize(
    "folder",
    [
        "cvrarray/core",
        "cvrarray/array",
        "cvrarray/input",
        "cvrarray/choice",
        "cvrarray/cpu",
        "cvrarray/gpu",
        "cvrarray/files",
        "cvrarray/store",
        "cvrarray/cli",
        "kernels",
    ],
)
def test_folders_exist(folder):
    assert any((ROOT / folder).iterdir())


def upward_imports() -> list[str]:
    """Imports that name a module of a higher layer, or one that stands beside the layers."""
    found = []
    for module in MODULES:
        here = layer(module)
        for other in sorted(imports(module)) if here is not None else ():
            there = layer(other)
            if here < (len(LAYERS) - 1 if there is None else there):
                found.append(f"{module} imports {other}")
    return found


def circle() -> set[str]:
    """Modules that import one another in a circle, and those that import these."""
    left = {module: imports(module) for module in MODULES}
    while ready := {module for module in left if not left[module] & set(left)}:
        left = {module: names for module, names in left.items() if module not in ready}
    return set(left)


def test_imports_flow_one_way():
    assert upward_imports() == []


@pytest.mark.parametrize("module", MODULES)
def test_no_import_hides_in_a_string(module):
    """Only the front names modules of ours in strings, and the table of kernels by device; all other arrows are
    imports.
    """
    if module in ("cvrarray.__init__", "cvrarray.core.devices"):
        return
    for node in ast.walk(source(module)):
        if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) + ast.unparse(node.func).rpartition(".")[2]:
            assert "cvrarray" not in ast.unparse(node) and not ast.unparse(node.args[0]).startswith(("'.", "f'.")), module
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "__import__":
            raise AssertionError(f"{module} calls __import__")


def test_no_cycles():
    """Modules of one layer may import one another, but not in a circle."""
    assert circle() == set()


@pytest.mark.parametrize("folder", ["cpu", "gpu"])
def test_device_modules_know_no_array_class(folder):
    allowed = {"cvrarray.cpu", "cvrarray.gpu"} | {name for name in MODULES if name.startswith("cvrarray.core.")}
    for module in MODULES:
        if module.startswith(f"cvrarray.{folder}."):
            others = {name for name in imports(module) if not name.startswith(f"cvrarray.{folder}")}
            assert others <= allowed, f"{module} imports {others - allowed}"


@pytest.mark.parametrize("format", ["cvr", "bbcsr", "csr"])
def test_device_modules_offer_the_same_functions(format):
    """Same names and arguments, read from the text: no GPU is needed."""
    cpu, gpu = (_signatures(f"cvrarray.{folder}.{format}") for folder in ("cpu", "gpu"))
    for name in set(cpu) & set(gpu):
        assert cpu[name] == gpu[name], name
    used = {"check", "canonical"} if format == "csr" else {"convert", "product"}
    assert used <= set(cpu) & set(gpu)


def _signatures(module: str) -> dict[str, list[str]]:
    functions = [node for node in source(module).body if isinstance(node, ast.FunctionDef)]
    found = {f.name: [a.arg for a in f.args.args] for f in functions if not f.name.startswith("_")}
    for node in source(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("_conversion"):
            others = _signatures(node.module)
            found |= {alias.name: others[alias.name] for alias in node.names if alias.name in others}
    return found


@pytest.mark.parametrize("module", MODULES)
def test_no_name_has_cupy_in_it(module):
    """Dask takes every class for CuPy's whose module or name has "cupy" in it."""
    names = [module] + [node.name for node in ast.walk(source(module)) if isinstance(node, ast.ClassDef)]
    assert not [name for name in names if "cupy" in name.lower()]


@pytest.mark.parametrize("module", MODULES)
def test_no_own_device_branches(module):
    """CuPy is imported by the GPU's modules, by core.devices, and inside functions that build what CuPy alone has."""
    if module.startswith(("cvrarray.gpu.", "cvrarray.linalg.gpu.", "cvrarray.dask.")):
        return
    for node in source(module).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not [name for name in names if name.partition(".")[0] in ("cupy", "cupyx", "dask")], module


def test_dask_may_be_imported_first():
    """A worker has distributed before it meets our arrays; each module of ours can be the first that it imports."""
    names = [name for name in MODULES if name.startswith("cvrarray.dask.")]
    code = "import sys, importlib, distributed\nfor name in sys.argv[1:]:\n" + (
        "    for loaded in [m for m in sys.modules if m.startswith('cvrarray')]: del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
    )
    pytest.importorskip("distributed")
    subprocess.run([sys.executable, "-c", code, *names], check=True, cwd=ROOT)


def test_import_is_light():
    """`import cvrarray` loads NumPy and nothing heavier, and so does asking for its version and names."""
    code = (
        f"import sys, cvrarray; cvrarray.__version__, dir(cvrarray); print([name for name in {HEAVY} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("missing", ["dask", "torch"])
def test_help_and_star_without_an_extra(missing):
    """``help(cvrarray)`` asks for every name of ``dir``: names that need a package that is not installed are not there."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import inspect, cvrarray; inspect.getmembers(cvrarray); from cvrarray import *; asarray"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_cpu_work_does_not_import_cupy_or_dask():
    code = (
        "import sys, cvrarray, numpy as np; A = cvrarray.CVRArray(np.eye(3)); A @ np.ones(3); A.tocsr(); A.check(); "
        "print([name for name in ('cupy', 'dask', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", cvrarray.__all__)
def test_public_names_are_documented(name):
    """Every public name, and every public method and property of the classes, says what it does."""
    public = getattr(cvrarray, name)
    assert inspect.getdoc(public)
    if inspect.isclass(public):
        for attribute in (a for a in dir(public) if not a.startswith("_")):
            value = inspect.getattr_static(public, attribute)
            if isinstance(value, (property, classmethod, staticmethod)) or inspect.isfunction(value):
                assert inspect.getdoc(getattr(value, "__func__", value)), f"{name}.{attribute}"


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_their_public_functions_are_documented(module):
    """From the text, so that the GPU's modules count too."""
    tree = source(module)
    if tree.body:
        assert ast.get_docstring(tree), module
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if "overload" not in map(ast.unparse, node.decorator_list):  # the last of them has it
                assert ast.get_docstring(node), f"{module}.{node.name}"


def test_public_names_are_importable():
    assert {*cvrarray.__all__, "dask", "__version__"} <= set(dir(cvrarray))
    for name in ("CVRArray", "BBCSRArray", "asarray", "statistics", "read", "save", "load"):
        assert name in cvrarray.__all__
        assert importlib.import_module("cvrarray").__getattr__(name) is getattr(cvrarray, name)
    with pytest.raises(AttributeError, match="no attribute 'csr_matrix'"):
        cvrarray.csr_matrix  # noqa: B018


# ---------------------------------------------------------------------------------------------------------------- walks

#: A walk: what is done, the files of the package that a call passes through when everything is compiled and imported,
#: and a folder that it must not enter. They may become fewer.
WALKS = {
    "first product, CVR": ("CVRArray(S, device='cpu') @ x", 13, "store"),
    "first product, BBCSR": ("BBCSRArray(S, block_size=2, device='cpu') @ x", 12, "store"),
    "a file": ("read(path, device='cpu')", 30, "store"),
    "to_dask": ("to_dask(S, chunks=100, device='cpu')", 33, "store"),
}
WALKER = """
import sys, numpy as np, scipy.sparse as sp, scipy.io, cvrarray, cvrarray.files, cvrarray.cpu.cvr
from pathlib import Path

def walk(call):
    package, files, importing = Path(cvrarray.__file__).parent, set(), "importlib"
    def on_call(frame, event, arg):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(package)):
            callers = []
            while frame:
                callers.append(frame.f_code)
                frame = frame.f_back
            if not any(importing in code.co_filename for code in callers):
                files.add(Path(path).relative_to(package).as_posix())
    sys.setprofile(on_call)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted(files)

S, path = sp.random_array((300, 200), density=0.05, format="csr", rng=np.random.default_rng(0)), sys.argv[1]
scipy.io.mmwrite(path, S)
x = np.ones(200)
"""


def test_walks_pass_through_few_files(tmp_path):
    """A stranger who follows a call reads so many files: in a process of its own, counted by a profiler's events."""
    program = WALKER
    for what, _, _ in WALKS.values():
        made, _, product = what.partition(" @ ")
        program += f"A = cvrarray.{made}\n"  # and compiled
        program += "A @ x\n" * bool(product)
        program += f"A = cvrarray.{made}\n" if product else ""
        program += f"print(*walk(lambda: {'A @ x' if product else 'cvrarray.' + what}))\n"
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "a.mtx"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for (name, (_, most, not_entered)), line in zip(WALKS.items(), done.stdout.splitlines(), strict=True):
        files = line.split()
        assert len(files) <= most, f"{name} passes through {len(files)} files: {', '.join(files)}"
        assert not any(file.startswith(f"{not_entered}/") for file in files)
