"""cuSPARSE, where CuPy calls it for us: on the current stream, and on none that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy


@contextmanager
def on_current_stream() -> Iterator[None]:
    """What this thread asks of cuSPARSE runs on the current stream; afterwards, unless a call says otherwise, on the default
    one.

    CuPy 14.2 does not name a stream for a product of sparse matrices. It runs on the one that was named last: beside what
    the current stream has not done yet, so that its result may be anything; and where that stream is gone, the process
    ends with a segmentation fault. So no stream is left behind.
    """
    from cupy_backends.cuda.libs import cusparse

    handle = cupy.cuda.device.get_cusparse_handle()
    cusparse.setStream(handle, cupy.cuda.get_current_stream().ptr)
    try:
        yield
    finally:
        cusparse.setStream(handle, 0)
