"""Waiting without sleep, for threads that expect a change within microseconds."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from cvrarray.cpu.runtime.compiler import compiled, kernel


@intrinsic
def _now(typingctx, number):
    """``number[0]`` of an int64 array, read from memory every time."""

    def codegen(context, builder, signature, args):
        first = context.make_array(number)(context, builder, args[0]).data
        return builder.load_atomic(first, "acquire", 8)

    return types.int64(number), codegen


@kernel
def _spin_wait(number, seen, reads, reads_after):
    """Whether ``number[0]`` differs from `seen`, or comes to differ within so many reads. Other threads can run Python.

    After a change `reads_after` more reads follow. The thread that made the change still runs Python for a moment,
    and a thread that asks for the interpreter meanwhile is put to sleep.
    """
    for _ in range(reads):
        if _now(number) != seen:
            for _ in range(reads_after):
                _now(number)
            return True
    return False


#: The one version of it.
spin_wait = compiled(_spin_wait, np.zeros(1, np.int64), 0, 0, 0)
