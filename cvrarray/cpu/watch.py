"""Waiting without sleeping, for threads that expect what they wait for within microseconds."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from cvrarray.cpu.caching import njit


@intrinsic
def _now(typingctx, number):
    """``number[0]`` of an int64 array, read from memory every time."""

    def codegen(context, builder, signature, args):
        first = context.make_array(number)(context, builder, args[0]).data
        return builder.load_atomic(first, "acquire", 8)

    return types.int64(number), codegen


@njit("boolean(Array(int64, 1, 'C'), int64, int64, int64)", nogil=True, cache=True, _nrt=False)
def changed(number, seen, looks, after):
    """Whether ``number[0]`` is, or within so many looks becomes, another number than `seen`. Other threads can run Python.

    On a change it looks `after` times more: who made it still runs Python for a moment, and a thread that then asks for
    the interpreter is put to sleep.
    """
    for _ in range(looks):
        if _now(number) != seen:
            for _ in range(after):
                _now(number)
            return True
    return False
