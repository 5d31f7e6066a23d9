"""The code is that of docs/architecture.md: folders, one-way imports, a light import, documented names."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import cvrarray

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cvrarray"
MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("*.py"))
HEAVY = ("h5py", "zarr", "torch", "dask", "cupy", "numba", "scipy", "sparse", "matplotlib", "tqdm", "skfem")

LAYERS = [  # a module imports from its own layer and from those before it
    {"core"},
    {"cpu", "gpu"},
    {"input"},
    {"array"},
    {"cvr", "bbcsr"},
    {"formats"},
    {"choice"},
    {"linalg"},
    {"torch", "sklearn"},
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


@cache
def source(module: str) -> ast.Module:
    """A module's tree, not to be changed."""
    return ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())


@cache
def imports(module: str) -> frozenset[str]:
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
    return frozenset(found & set(MODULES))


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


def test_imports_flow_one_way_without_circles():
    assert upward_imports() == []
    assert circle() == set()


def calls(module: str) -> list[ast.Call]:
    return [node for node in ast.walk(source(module)) if isinstance(node, ast.Call)]


def test_no_import_hides_in_a_string():
    """Only the front names modules of ours in strings, and the table of kernels by device; other arrows are imports."""
    hidden = [
        f"{module}: {ast.unparse(call)}"
        for module in sorted({*MODULES} - {"cvrarray.__init__", "cvrarray.core.devices"})
        for call in calls(module)
        if ast.unparse(call.func) == "__import__"
        or (
            "import_module" in ast.unparse(call.func)
            and ("cvrarray" in ast.unparse(call) or ast.unparse(call.args[0]).startswith(("'.", "f'.")))
        )
    ]
    assert not hidden


@pytest.mark.parametrize("folder", ["cpu", "gpu"])
def test_device_modules_know_no_array_class(folder):
    for module in (name for name in MODULES if name.startswith(f"cvrarray.{folder}.")):
        others = {name for name in imports(module) if not name.startswith((f"cvrarray.{folder}", "cvrarray.core."))}
        assert others <= {"cvrarray.cpu", "cvrarray.gpu"}, f"{module} imports {others}"


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


def test_no_name_has_cupy_in_it():
    """Dask takes every class for CuPy's whose module or name has "cupy" in it."""
    classes = [node.name for module in MODULES for node in ast.walk(source(module)) if isinstance(node, ast.ClassDef)]
    assert not [name for name in MODULES + classes if "cupy" in name.lower()]


def test_who_imports_cupy_and_dask():
    """The GPU's modules, core.devices, and functions that build what CuPy alone has; Dask's modules."""
    theirs = ("cvrarray.gpu.", "cvrarray.linalg.gpu.", "cvrarray.dask.")
    for module in (name for name in MODULES if not name.startswith(theirs)):
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


def test_imports_are_light():
    """`import cvrarray`, its version and its names load NumPy and nothing heavier; work on a CPU neither CuPy nor Dask."""
    code = (
        f"import sys, cvrarray; cvrarray.__version__, dir(cvrarray); print([name for name in {HEAVY} if name in sys.modules]); "
        "import numpy as np; A = cvrarray.CVRArray(np.eye(3)); A @ np.ones(3); A.tocsr(); A.check(); "
        "print([name for name in ('cupy', 'dask', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.split() == ["[]", "[]"]


def test_help_and_star_without_extras():
    """``help(cvrarray)`` asks for every name of ``dir``: names that need a package that is not installed are not there."""
    code = (
        "import sys; sys.modules['dask'] = sys.modules['torch'] = None\n"
        "import inspect, cvrarray; inspect.getmembers(cvrarray); from cvrarray import *; asarray"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("module", "package", "extra"), [("torch", "PyTorch", "torch"), ("sklearn", "scikit-learn", "sklearn")]
)
def test_missing_extra_is_named(module, package, extra):
    """However the module is asked for."""
    words = f"cvrarray.{module} needs {package}, which is not installed: pip install 'cvrarray[{extra}]'"
    for asked in (f"cvrarray.{module}", f"import cvrarray.{module}", f"from cvrarray import {module}"):
        code = f"import sys; sys.modules['{module}'] = None\nimport cvrarray\n{asked}"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
        assert found.stderr.splitlines()[-1] == f"ModuleNotFoundError: {words}"


def test_public_names_are_documented():
    """Every public name, and every public method and property of the classes, says what it does."""
    assert {*cvrarray.__all__, "dask", "__version__"} <= set(dir(cvrarray))
    with pytest.raises(AttributeError, match="no attribute 'csr_matrix'"):
        cvrarray.csr_matrix  # noqa: B018
    for name in cvrarray.__all__:
        public = getattr(cvrarray, name)
        assert inspect.getdoc(public), name
        for attribute in (a for a in dir(public) if not a.startswith("_")) if inspect.isclass(public) else ():
            value = inspect.getattr_static(public, attribute)
            if isinstance(value, (property, classmethod, staticmethod)) or inspect.isfunction(value):
                assert inspect.getdoc(getattr(value, "__func__", value)), f"{name}.{attribute}"


def test_modules_and_their_public_functions_are_documented():
    """From the text, so that the GPU's modules count too."""
    for module in MODULES:
        tree = source(module)
        assert not tree.body or ast.get_docstring(tree), module
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                if "overload" not in map(ast.unparse, node.decorator_list):  # the last of them has it
                    assert ast.get_docstring(node), f"{module}.{node.name}"
