"""Connections between the ranks of one solve: how ranks connect, exchange messages, and notice who is lost.

Workers are reached at the cluster's addresses and with its security (TLS): there is no other port, and nothing else to
configure. A rank that ends early tells all others why. A rank whose process dies closes its connections. Either way
every other rank raises :class:`RankLost` at once, and never waits for a message that will not come.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any

OPERATION = "cvrarray_meet"
FAREWELL = 2.0  #: seconds that another rank has to read the last message, and a worker to confirm that a solve is over


class RankLost(RuntimeError):
    """Another rank has ended or does not answer, so this one cannot go on. The cause is the other rank's error."""


class Meeting:
    """Connections that other ranks have opened to this worker for one solve. Used only on the worker's event loop."""

    def __init__(self) -> None:
        self.comms: defaultdict[int, asyncio.Future[Any]] = defaultdict(asyncio.get_running_loop().create_future)
        self.over = asyncio.Event()
        self.has_begun = False  # the rank on this worker; it runs in a thread of its own

    async def arrive(self, rank: int, comm: Any) -> None:
        """Keep a connection until the solve is over."""
        self.comms[rank].set_result(comm)
        await self.over.wait()

    async def wait_for(self, rank: int) -> Any:
        """The connection of a rank, as soon as it exists."""
        if self.over.is_set():
            raise RankLost("the solve was given up")
        return await asyncio.shield(self.comms[rank])  # a rank that waits no longer must not cancel it

    def end(self) -> None:
        """Close everything; a task that still waits gets an error."""
        self.over.set()
        for comm in self.comms.values():
            if comm.done():
                comm.result().abort()
            else:
                comm.set_exception(RankLost("the solve was given up"))
                comm.exception()  # or asyncio reports one that nobody waits for any more


# by the worker's address (a process may have several) and the solve's token
_meetings: dict[tuple[str, str], Meeting] = {}


async def prepare(token: str, dask_worker: Any) -> None:
    """On each worker's event loop, before a solve: accept the connections of other ranks."""
    from distributed.core import Status

    async def meet(comm: Any, token: str, rank: int) -> Any:
        meeting = _meetings.get((dask_worker.address, token))
        if meeting is None:
            comm.abort()
        else:
            await meeting.arrive(rank, comm)
        return Status.dont_reply

    missing = [name for name in ("handlers", "connection_args") if not hasattr(dask_worker, name)]
    if missing:
        import distributed

        raise RuntimeError(
            f"a solve over a cluster needs distributed's Worker.{missing[0]}, which distributed {distributed.__version__} does"
            " not have. Install an earlier version of it"
        )
    dask_worker.handlers[OPERATION] = meet
    _meetings[dask_worker.address, token] = Meeting()


async def forget(token: str, dask_worker: Any) -> bool:
    """On each worker's event loop, after a solve or to abandon it: whether its rank had begun. One that begins later ends."""
    meeting = _meetings.pop((dask_worker.address, token), None)
    if meeting is None:
        return False
    meeting.end()
    return meeting.has_begun


class Mesh:
    """One rank's connections to all others. Called from the rank's thread; everything runs on the worker's event loop.

    Parameters
    ----------
    token : str
        Names the solve.
    rank : int
    addresses : tuple of str
        Of all ranks' workers.
    timeout : float
        Seconds that others may take to connect, or to send a message that is due.
    """

    def __init__(self, token: str, rank: int, addresses: tuple[str, ...], timeout: float):
        from distributed import get_worker

        self.rank, self.addresses, self.timeout = rank, addresses, timeout
        self.peers = [k for k in range(len(addresses)) if k != rank]
        self.worker = get_worker()
        self.watching: Future[dict[int, Any]] | None = None
        self.comms: dict[int, Any] = {}
        meeting = _meetings.get((self.worker.address, token))
        if meeting is None:
            raise RankLost("the solve was given up")
        meeting.has_begun = True
        self._run(self._meet(meeting, token))

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of ranks."""
        found = self.exchange(dict.fromkeys(self.peers, value), self.peers)
        return [value if k == self.rank else found[k] for k in range(len(self.addresses))]

    def exchange(self, messages: dict[int, Any], sources: Iterable[int]) -> dict[int, Any]:
        """Send messages to some ranks, and receive from others."""
        found: dict[int, Any] = self._run(self._exchange(messages, list(sources)))
        return found

    def watch(self) -> None:
        """Begin to read the next messages of the others in the background: see :meth:`check`."""
        coroutine = self._exchange({}, self.peers, timeout=None)
        self.watching = asyncio.run_coroutine_threadsafe(coroutine, self.worker.loop.asyncio_loop)

    def check(self) -> None:
        """Raise :class:`RankLost` if another rank was lost since :meth:`watch`; costs nothing."""
        if self.watching is not None and self.watching.done() and (error := self.watching.exception()):
            raise error

    def close(self, error: BaseException | None) -> None:
        """End together with all others; after an error, end alone and tell them why."""
        try:
            if error is None:
                if self.watching is None:
                    self.gather(None)
                else:
                    self._run(self._exchange(dict.fromkeys(self.peers), []))
                    self.watching.result(self.timeout)
        finally:
            self._run(self._close(None if error is None else f"{type(error).__name__}: {error}"))

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.worker.loop.asyncio_loop).result()

    async def _meet(self, meeting: Meeting, token: str) -> None:
        """Connect to all lower ranks, and wait for the higher ones."""
        self.comms = await self._all({k: self._find(k, meeting, token) for k in self.peers}, self.timeout)

    async def _find(self, peer: int, meeting: Meeting, token: str) -> Any:
        if peer > self.rank:
            return await meeting.wait_for(peer)
        from distributed.comm import connect

        try:
            comm = await connect(self.addresses[peer], timeout=self.timeout, **self.worker.connection_args)
            await comm.write({"op": OPERATION, "token": token, "rank": self.rank, "reply": False})
        except OSError as error:
            raise self._lost(peer, error) from error
        return comm

    async def _exchange(self, messages: dict[int, Any], sources: list[int], timeout: float | None = -1) -> dict[int, Any]:
        timeout = self.timeout if timeout == -1 else timeout
        sending = {("to", k): self._send(k, {"data": message}) for k, message in messages.items()}
        found = await self._all(sending | {("from", k): self._receive(k) for k in sources}, timeout)
        return {k: found["from", k] for k in sources}

    async def _send(self, peer: int, message: dict[str, Any]) -> None:
        from distributed.protocol import to_serialize

        try:
            await self.comms[peer].write({key: to_serialize(value) for key, value in message.items()})
        except OSError as error:
            raise self._lost(peer, error) from error

    async def _receive(self, peer: int) -> Any:
        try:
            message = await self.comms[peer].read()
        except OSError as error:
            raise self._lost(peer, error) from error
        if "failed" in message:
            raise RankLost(f"rank {peer} on {self.addresses[peer]} ended with {message['failed']}")
        return message["data"]

    async def _all(self, coroutines: dict[Any, Coroutine[Any, Any, Any]], timeout: float | None) -> dict[Any, Any]:
        """All results by name. The first error, or a :class:`RankLost` on a timeout, ends all coroutines."""
        tasks = {name: asyncio.ensure_future(coroutine) for name, coroutine in coroutines.items()}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
        silent = [name for name, task in tasks.items() if not task.done()]
        for name in silent:
            tasks[name].cancel()
        errors = [error for name, task in tasks.items() if name not in silent and (error := task.exception())]
        if errors:
            raise errors[0]
        if silent:
            ranks = sorted({name if isinstance(name, int) else name[1] for name in silent})
            places = ", ".join(f"{k} on {self.addresses[k]}" for k in ranks)
            raise RankLost(
                f"rank {places} sent nothing for {timeout:g} s: is the worker busy with other tasks? Each rank needs a"
                " thread of its worker for the whole solve. Wait for those tasks, or pass a larger timeout"
            )
        return {name: task.result() for name, task in tasks.items()}

    def _lost(self, peer: int, error: Exception) -> RankLost:
        return RankLost(f"rank {peer} on {self.addresses[peer]} is gone: {error or type(error).__name__}")

    async def _close(self, failed: str | None) -> None:
        await asyncio.gather(*(self._leave(peer, comm, failed) for peer, comm in self.comms.items()))

    async def _leave(self, peer: int, comm: Any, failed: str | None) -> None:
        try:
            async with asyncio.timeout(self.timeout if failed is None else FAREWELL):  # one that is stopped reads nothing
                if failed is not None:
                    await self._send(peer, {"failed": failed})
                await comm.close()  # after pending messages are sent
        except (OSError, RankLost):  # TimeoutError is an OSError
            comm.abort()
