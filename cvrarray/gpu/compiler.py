"""Kernels as loaded functions: source text from ``kernels/``, compiled by NVRTC one instantiation at a time.

CuPy compiles, loads and caches the result on disk. The cache's key is the text that CuPy is given, without included
files. So ``common.cuh`` is pasted in front of each kernel file, and every ``#include "x.cuh"`` is replaced by that
file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from .captures import relaxed

OPTIONS = ("-std=c++17",)

#: NumPy dtype -> its name in ``common.cuh``.
CTYPE = {
    np.dtype(name): ctype
    for name, ctype in {
        "bool": "bool",
        "int8": "int8",
        "int16": "short",
        "int32": "int",
        "int64": "int64",
        "uint8": "uint8",
        "uint16": "uint16",
        "uint32": "uint32",
        "uint64": "uint64",
        "float16": "float16",
        "float32": "float",
        "float64": "double",
        "complex64": "complex64",
        "complex128": "complex128",
    }.items()
}

#: (stored dtype, product dtype) that stand for all pairs: each kind of arithmetic, and a widening one.
PRODUCTS = [
    ("float32", "float32"),
    ("float64", "float64"),
    ("float32", "float64"),
    ("float16", "float32"),
    ("complex64", "complex64"),
    ("complex128", "complex128"),
    ("float32", "complex64"),
    ("bool", "int64"),
    ("int8", "int8"),
    ("uint64", "uint64"),
]
#: Those whose sums are rounded: of floating-point numbers.
ROUNDED = [(value, product) for value, product in PRODUCTS if np.dtype(product).kind in "fc"]


class Coded(NamedTuple):
    """A template argument: values of `dtype` as numbers of distinct ones, ``Few``, or all the same, ``One``."""

    kind: str
    dtype: str | np.dtype

    def __str__(self) -> str:
        return f"{self.kind}<{CTYPE[np.dtype(self.dtype)]}>"


#: How a matrix's values are stored, and the product's dtype: as PRODUCTS.
STORED: list[tuple[str | Coded, str]] = [
    *PRODUCTS,
    (Coded("Few", "float32"), "float32"),
    (Coded("Few", "float64"), "float64"),
    (Coded("Few", "complex128"), "complex128"),
    (Coded("One", "float32"), "float64"),
    (Coded("One", "complex64"), "complex64"),
    (Coded("One", "bool"), "int64"),
]


#: The same of rows of X as entries of x (:mod:`.rows_as_entries`), of one load and of two: vectors, as NumPy names them.
PLAIN_ROWS_OF_X = [("float32", "4f4"), ("float64", "2f8"), ("float16", "2f4"), ("float32", "2f8"), ("complex64", "2c8")]
ROWS_OF_X: list[tuple[str | Coded, str]] = [
    *PLAIN_ROWS_OF_X,
    (Coded("Few", "float32"), "4f4"),
    (Coded("One", "float64"), "2f8"),
]
LONG_ROWS_OF_X = [("float32", "8f4"), ("float64", "4f8"), ("complex64", "4c8"), ("float32", "2c16")]


@cache
def source(name: str) -> str:
    """The text of ``kernels/<name>.cu`` with ``common.cuh`` in front."""
    text = re.sub(r'#include "(.+)"\n', lambda include: _read(include[1]), _read(f"{name}.cu"))
    return _read("common.cuh") + "\n" + text


def _read(file: str) -> str:
    """In a wheel the kernels lie in this very package, in a checkout beside it.

    They are never looked for by name, as a module: that could find those of another installed checkout.
    """
    inside = files("cvrarray") / "kernels"
    folder = inside if inside.is_dir() else Path(__file__).parents[2] / "kernels"
    return (folder / file).read_text()


def constant(file: str, name: str) -> int:
    """What ``kernels/<file>`` calls `name`, a number that the host counts with too: it stands there alone."""
    (number,) = re.findall(rf"constexpr int [^;]*\b{name} = (\d+)", _read(file))
    return int(number)


class Kernel:
    """A kernel of ``kernels/<file>.cu``: a function template, and which of its instantiations CI compiles without a
    GPU.

    Calling it gives the loaded function for the current device, compiled on first use. It is called with the template's
    arguments, or with that from which ``arguments(...)`` makes them: dtypes, booleans and integers. There is no other
    way to a kernel, so that KERNELS lists all of them.

    Parameters
    ----------
    file, name
        Where the template stands, and what it is called there.
    cases
        What it may be called with: at least one case for each path through the kernel. Names stand for dtypes.
    arguments
        By default what the kernel is called with.
    registers
        Registers that a thread may have, where the compiler would take a few more; None: what it takes. It is called like
        `arguments`.
    """

    def __init__(
        self,
        file: str,
        name: str,
        cases: Iterable[tuple[object, ...]] = ((),),
        arguments: Callable[..., tuple[object, ...]] = lambda *arguments: arguments,
        registers: Callable[..., int | None] = lambda *arguments: None,
    ) -> None:
        self.file, self.name, self._cases, self._arguments, self._registers = file, name, list(cases), arguments, registers
        KERNELS.append(self)

    def __call__(self, *of: Any) -> cupy.cuda.Function:
        return load(cupy.cuda.runtime.getDevice(), self.file, self.name, *self._arguments(*of), registers=self._registers(*of))

    def instantiations(self) -> list[str]:
        """Those of the cases, as C++ spells them."""
        cases = ([np.dtype(part) if isinstance(part, str) else part for part in case] for case in self._cases)
        return list(dict.fromkeys(instantiation(self.name, *self._arguments(*case)) for case in cases))


#: Every kernel of the package.
KERNELS: list[Kernel] = []


def instantiation(function: str, *arguments: object) -> str:
    """``function<arguments>`` as C++ spells it; a function that is no template has none."""
    return f"{function}<{', '.join(_argument(a) for a in arguments)}>" if arguments else function


def _argument(argument: object) -> str:
    if isinstance(argument, Coded):
        return str(argument)
    if isinstance(argument, (bool, int)):
        return str(argument).lower()
    dtype = np.dtype(argument)
    if dtype.subdtype is not None:
        number, (n,) = dtype.subdtype
        return f"Vector<{CTYPE[number]}, {n}>"
    return CTYPE[dtype]


@cache
def load(_device: int, file: str, name: str, *arguments: object, registers: int | None = None) -> cupy.cuda.Function:
    """The function `name` of ``kernels/<file>.cu`` with these template arguments, of threads with at most so many registers."""
    expression, options = instantiation(name, *arguments), OPTIONS
    if registers is not None:
        options = *options, f"--maxrregcount={registers}"
    module = cupy.RawModule(code=source(file), options=options, name_expressions=(expression,))
    with relaxed():  # a product may be the first of its kind in a capture
        return module.get_function(expression).kernel


def allowed(found: cupy.cuda.Function, most: int) -> cupy.cuda.Function:
    """The kernel, allowed `most` bytes of shared memory. Arrays share it, so `most` is what any of them may ask for."""
    cupy.cuda.driver.funcSetAttribute(found.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most)
    return found
