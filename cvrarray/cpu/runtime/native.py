"""Kernels as compiled code calls them: by address, with their arguments packed in memory.

Numba's compiled code can call what it was compiled with. A loop that calls the products of every format and dtype would
be compiled once for each. Here a kernel's machine code is called at its address instead, and the loop is compiled once.

A kernel's arguments, flattened as Numba passes them, are integers and pointers: each takes 8 bytes wherever a C
compiler for a 64-bit machine puts it, and the caller removes them. So one call with SLOTS numbers serves all kernels,
which ignore those that follow theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cvrarray.cpu.runtime.compiler import version

#: Numbers that a call passes on: few for a kernel of vectors, many for one that takes the tables of a format.
FEW, SLOTS = 64, 320

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()


def address(function: Callable, *args: Any) -> int:
    """Where the machine code of a kernel's version for such arguments is; it stays there as long as the kernel."""
    result = version(function, *args)
    return _address(result.library, result.fndesc.llvm_func_name)


@cache
def _address(library: Any, name: str) -> int:
    at: int = library.get_pointer_to_function(name)
    return at


def packed(args: tuple[Any, ...]) -> np.ndarray:
    """The arguments that follow ``first, last``, for the calls below. It holds addresses: keep the arrays alive."""
    numbers: list[int] = []
    _flatten(args, numbers)
    if len(numbers) > SLOTS:
        raise ValueError(f"a kernel must have at most {SLOTS} arguments, flattened; got {len(numbers)}")
    slots = np.zeros(FEW if len(numbers) <= FEW else SLOTS, np.int64)
    slots[: len(numbers)] = numbers
    return slots


def _flatten(args: tuple[Any, ...], numbers: list[int]) -> None:
    """Append what Numba passes for arguments: of an array its owner (none), size, item size, data, shape and strides."""
    for arg in args:
        if isinstance(arg, np.ndarray):
            numbers += 0, 0, arg.size, arg.itemsize, arg.__array_interface__["data"][0], *arg.shape, *arg.strides
        elif isinstance(arg, tuple):
            _flatten(arg, numbers)
        elif arg is None:
            numbers.append(0)
        elif isinstance(arg, int | np.int64) and not isinstance(arg, bool):
            numbers.append(int(arg))
        else:
            raise TypeError(f"a kernel that is called at its address takes arrays and integers; got {type(arg).__name__}")


@intrinsic
def number_at(typingctx, start, k):
    """The int64 at an address, k numbers on."""

    def codegen(context, builder, signature, args):
        return builder.load(_place(builder, args))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def read(typingctx, start, k):
    """As :func:`number_at`, read from memory every time; what the writer wrote before is seen afterwards."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_place(builder, args), "acquire", 8)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def publish(typingctx, start, k, number):
    """Write the int64 at an address, k numbers on, after all that was written before."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[2], _place(builder, args), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def fetch_add(typingctx, start, k):
    """Add 1 to the int64 at an address, k numbers on, as one step for all threads; what it was."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", _place(builder, args), _I64(1), "acq_rel")

    return types.int64(types.int64, types.int64), codegen


def _place(builder, args):
    return builder.gep(builder.inttoptr(args[0], _I64.as_pointer()), [args[1]])


def _call_with(n_slots):
    @intrinsic
    def call(typingctx, function, first, last, slots):
        """``function(first, last, *arguments)``, the kernel at an address with what :func:`packed` packed."""

        def codegen(context, builder, signature, args):
            function, first, last, slots = args
            unused = [cgutils.alloca_once(builder, _BYTES) for _ in range(2)]  # a result and an error, neither of which is
            start = builder.inttoptr(slots, _I64.as_pointer())
            numbers = [builder.load(builder.gep(start, [_I64(k)])) for k in range(n_slots)]
            kind = ir.FunctionType(_I32, [_BYTES.as_pointer()] * 2 + [_I64] * (2 + n_slots))
            builder.call(builder.inttoptr(function, kind.as_pointer()), [*unused, first, last, *numbers])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), codegen

    return call


call_with_few, call = _call_with(FEW), _call_with(SLOTS)
