"""Communication between the ranks of one solve: windows of a vector, one number of each rank, and the loss of a rank.

Three transports have the same methods: :class:`NullTransport` for one rank, :class:`HostTransport` over the workers'
own connections (:mod:`cvrarray.dask.mesh`), and :class:`NcclTransport` between GPUs, which uses those connections only
to connect and to notice who is lost.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..core import devices
from .mesh import Mesh

Window = tuple[int, Any]  #: the other rank, and the contiguous piece of this rank's vector that it receives or sends

PAUSE = 2e-5  #: seconds between two queries of a GPU that is not ready


class NullTransport:
    """One rank: nothing is sent."""

    name = "none"

    def place(self, sends: list[Window], receives: list[Window]) -> None:
        """Fix the windows that every :meth:`exchange` moves: between two ranks, in the same order on both."""

    def exchange(self) -> None:
        """Send and receive all windows, in place."""

    def gather(self, *scalars: Any) -> None:
        """Fill arrays (n_ranks,) float64, of which each rank has set its own number."""

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of ranks."""
        return [value]

    def check(self) -> None:
        """Raise :class:`RankLost` if another rank has ended."""


class HostTransport(NullTransport):
    """Copies through host memory and the workers' connections: for CPUs, and for GPUs that NCCL cannot join."""

    name = "host"
    sends: Any
    receives: Any

    def __init__(self, mesh: Mesh):
        self.mesh = mesh

    def place(self, sends: list[Window], receives: list[Window]) -> None:
        """See :class:`NullTransport`."""
        self.sends, self.receives = _by_peer(sends), _by_peer(receives)

    def exchange(self) -> None:
        """See :class:`NullTransport`."""
        # copies: between threads a message is the array itself
        messages = {peer: [_host_copy(window) for window in windows] for peer, windows in self.sends.items()}
        for peer, arrays in self.mesh.exchange(messages, self.receives).items():
            for window, array in zip(self.receives[peer], arrays, strict=True):
                _fill(window, array)

    def gather(self, *scalars: Any) -> None:
        """See :class:`NullTransport`."""
        everyone = self.mesh.gather([float(numbers[self.mesh.rank]) for numbers in scalars])
        for numbers, values in zip(scalars, zip(*everyone, strict=True), strict=True):
            _fill(numbers, np.array(values))

    def gather_objects(self, value: Any) -> list[Any]:
        """See :class:`NullTransport`."""
        return self.mesh.gather(value)


class NcclTransport(HostTransport):
    """NCCL, on the current stream; the host does not wait."""

    name = "nccl"

    def __init__(self, mesh: Mesh):
        super().__init__(mesh)
        self.nccl = nccl()
        (name, *_) = mesh.gather(self.nccl.get_unique_id() if mesh.rank == 0 else None)
        self.comm = self.nccl.NcclCommunicator(len(mesh.addresses), name, mesh.rank)

    def place(self, sends: list[Window], receives: list[Window]) -> None:
        """See :class:`NullTransport`."""
        self.sends, self.receives = sends, receives
        self.mesh.watch()  # from now on the next message is an error or the end

    def exchange(self) -> None:
        """See :class:`NullTransport`."""
        stream, byte = _stream(), self.nccl.NCCL_INT8
        self.nccl.groupStart()
        for peer, window in self.sends:
            self.comm.send(_address(window), window.nbytes, byte, peer, stream)
        for peer, window in self.receives:
            self.comm.recv(_address(window), window.nbytes, byte, peer, stream)
        self.nccl.groupEnd()

    def gather(self, *scalars: Any) -> None:
        """See :class:`NullTransport`."""
        stream, byte = _stream(), self.nccl.NCCL_INT8
        self.nccl.groupStart()  # one kernel for all
        for numbers in scalars:
            begin, size = _address(numbers), numbers.itemsize
            own = begin + self.mesh.rank * size  # NCCL's condition for gathering in place
            self.comm.allGather(own, begin, size, byte, stream)
        self.nccl.groupEnd()

    def check(self) -> None:
        """See :class:`NullTransport`."""
        self.mesh.check()
        self.comm.check_async_error()


@contextmanager
def connected(
    token: str, rank: int, addresses: tuple[str, ...], timeout: float, device: devices.Device, transport: str
) -> Iterator[NullTransport]:
    """The connection of one rank with all others; at the end it is closed, after an error aborted."""
    if len(addresses) == 1:
        yield NullTransport()
        return
    mesh = Mesh(token, rank, addresses, timeout)
    chosen: NullTransport = NullTransport()
    error: BaseException | None = None
    try:
        gpus = mesh.gather(_gpu(device))
        one_each = None not in gpus and len(set(gpus)) == len(gpus)  # NCCL refuses two ranks on one GPU
        if transport == "nccl" and not one_each:
            raise ValueError(
                "transport 'nccl' needs a GPU of its own for each worker, and NCCL's library there (pip install"
                f" nvidia-nccl-cu13, or -cu12); got {gpus}. Use transport='auto'"
            )
        chosen = NcclTransport(mesh) if one_each and transport != "host" else HostTransport(mesh)
        yield chosen
    except BaseException as found:
        error = found
        raise
    finally:
        try:
            mesh.close(error)
        except BaseException as lost:
            error = lost
            raise
        finally:
            if isinstance(chosen, NcclTransport):  # an abort ends kernels that wait for a lost rank
                chosen.comm.destroy() if error is None else chosen.comm.abort()


def nccl() -> Any:
    """CuPy's binding of NCCL, or None if it finds no library."""
    with warnings.catch_warnings():  # CuPy's warning says how to install it; so do our docs
        warnings.simplefilter("ignore")
        from cupy.cuda import nccl
    return nccl if nccl.available else None


def _gpu(device: devices.Device) -> Any:
    """An id of the rank's GPU, different from all others; None on CPUs and without NCCL."""
    if device.kind == "cpu" or nccl() is None:
        return None
    import socket

    return socket.gethostname(), device.xp.cuda.Device(device.index).pci_bus_id


def _address(array: Any) -> int:
    return int(array.data.ptr)


def _stream() -> int:
    """The current stream's pointer."""
    pointer: int = devices._cuda_module().cuda.get_current_stream().ptr
    return pointer


def _by_peer(windows: list[Window]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for peer, window in windows:
        found.setdefault(peer, []).append(window)
    return found


def _host_copy(array: Any) -> np.ndarray:
    return array.copy() if isinstance(array, np.ndarray) else array.get()


def _fill(array: Any, values: np.ndarray) -> None:
    if isinstance(array, np.ndarray):
        array[...] = values
    else:
        array.set(np.ascontiguousarray(values))


def wait_for_device(event: Any, transport: NullTransport) -> None:
    """Wait for a CUDA event; raises :class:`RankLost` if it will never come."""
    while not event.done:
        transport.check()
        time.sleep(PAUSE)
