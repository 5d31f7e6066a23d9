"""Type hints: every public function and method says what it takes and gives; ``make lint`` has mypy read ``typed_use.py``."""

import inspect
import tomllib
from pathlib import Path

import cvrarray

ROOT = Path(__file__).parent.parent


def callables():
    """(name, function) of all that users call, methods and properties of the classes among them."""
    for name in cvrarray.__all__:
        public = getattr(cvrarray, name)
        if inspect.isclass(public):
            for attribute in (a for a in dir(public) if not a.startswith("_") or a == "__init__"):
                value = inspect.getattr_static(public, attribute)
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if inspect.isfunction(function):
                    yield f"{name}.{attribute}", function
        elif inspect.isfunction(public):
            yield name, public
        elif inspect.ismodule(public):
            for attribute, function in vars(public).items():
                if inspect.isfunction(function) and function.__module__ == public.__name__ and attribute[0] != "_":
                    yield f"{name}.{attribute}", function


def test_parameters_have_types():
    for name, function in callables():
        parameters = inspect.signature(function).parameters.values()
        untyped = [p.name for p in parameters if p.annotation is p.empty and p.name not in ("self", "cls")]
        assert not untyped, f"{name} says nothing of {untyped}"


def test_types_are_shipped():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["cvrarray"]
    assert "tests/typed_use.py" in settings["tool"]["mypy"]["files"]
