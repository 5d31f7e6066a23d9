"""Zips: what they list, the bytes of their members, which several threads read to where they are wanted, and a writer.

``zipfile`` finds and unpacks members here. It does not read stored ones, or write: it copies each byte twice more.
"""

from __future__ import annotations

import io
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import IO, Any, BinaryIO

import numpy as np

from ..core import devices
from ..core.threads import get_num_threads
from .guards import BLOCK, MOST_INFLATION, naming

#: Bytes that a thread reads at least, and bytes below which other threads cost more than they save.
PART, MANY = 1 << 21, 1 << 24
_BLOCK = BLOCK // 4  # bytes read at a time: in the cache until they are summed
_LOCAL_HEADER = 30  # bytes, before the name
_SECRET = 0x1 | 0x20 | 0x40  # flags of what is encrypted, or a patch of something else


def members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """A zip's members by name; none stands there twice, or before the file's beginning."""
    by_name = {member.filename: member for member in archive.infolist()}
    if len(by_name) != len(archive.infolist()) or any(member.header_offset < 0 for member in by_name.values()):
        raise ValueError("has a zip directory that cannot be right. The file is damaged")
    return by_name


def begin_of(member: zipfile.ZipInfo, header: Callable[[int, int], bytes], size: int) -> int:
    """Where the content of a stored member begins in a file of `size` bytes, all of which lies in it.

    ``header(first, n)`` gives n bytes of the file, or fewer where it ends.
    """
    if member.flag_bits & _SECRET:
        raise ValueError("is encrypted. Save plain arrays")
    name = member.orig_filename.encode("utf-8" if member.flag_bits & 0x800 or member.filename.isascii() else "cp437")
    local = header(member.header_offset, _LOCAL_HEADER + len(name))
    name_size, extra_size = struct.unpack_from("<HH", local, 26) if len(local) >= _LOCAL_HEADER else (0, 0)
    begin: int = member.header_offset + _LOCAL_HEADER + name_size + extra_size
    is_there = local[:4] == b"PK\3\4" and name_size == len(name) and local[_LOCAL_HEADER:] == name
    if not is_there or member.compress_size != member.file_size or begin + member.file_size > size:
        raise ValueError("is not where the zip's directory says. The file is damaged")
    return begin


def contents(file: BinaryIO, wanted: Sequence[zipfile.ZipInfo], archive: zipfile.ZipFile) -> list[np.ndarray]:
    """The bytes of members, each an array of uint8, whose checksums are right; errors name the member.

    Raises
    ------
    ValueError
        One is damaged, or in a form that NumPy does not write.
    """
    n_threads = get_num_threads() if sum(member.file_size for member in wanted) >= MANY else 1
    found, tasks = [], list[Callable[[], object]]()
    with ExitStack() as opened:
        for member in wanted:
            with naming(f"member {member.filename}"):
                content, own = _tasks(file, member, archive, n_threads, opened)
            found.append(content)
            tasks += [partial(_named, member, task) for task in own]
        # checksums, inflating, and most of the copying, leave the interpreter to others
        side_by_side = map if n_threads == 1 else opened.enter_context(ThreadPoolExecutor(n_threads)).map
        list(side_by_side(lambda task: task(), tasks))
        checksums = list(side_by_side(zlib.crc32, found))
    for member, checksum in zip(wanted, checksums, strict=True):
        if checksum != member.CRC:
            raise ValueError(f"member {member.filename}: does not match its checksum, CRC-32. The file is damaged")
    return found


def _named(member: zipfile.ZipInfo, task: Callable[[], object]) -> None:
    with naming(f"member {member.filename}"):
        task()


def _tasks(
    file: BinaryIO, member: zipfile.ZipInfo, archive: zipfile.ZipFile, n_threads: int, opened: ExitStack
) -> tuple[np.ndarray, list[Callable[[], object]]]:
    """Memory for a member's bytes, and functions that fill its parts. `opened` gets what is to be closed then."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"must be stored or deflated, as NumPy does; got compression method {member.compress_type}")
    if member.file_size > MOST_INFLATION * (member.compress_size + 1):
        raise ValueError(f"promises {member.file_size} bytes, more than its {member.compress_size} can hold")
    content = devices.CPU.backend("runtime.memory").empty(member.file_size, np.uint8)
    if member.compress_type == zipfile.ZIP_DEFLATED:
        # before any is read: Python 3.12 and 3.13 open a member where a thread that reads another one has left the file
        # (python/cpython#128258)
        packed = opened.enter_context(archive.open(member))
        return content, [partial(_inflate, packed, content)]
    begin = begin_of(member, partial(_header, file), os.fstat(file.fileno()).st_size)
    n_parts = max(1, min(4 * n_threads if n_threads > 1 else 1, content.size // PART))
    ends = [content.size * k // n_parts for k in range(n_parts + 1)]
    return content, [
        partial(_read, file, begin + first, content[first:last]) for first, last in zip(ends[:-1], ends[1:], strict=True)
    ]


def _inflate(packed: IO[bytes], content: np.ndarray) -> None:
    """Unpack an opened member."""
    memory = memoryview(content)  # archive.read would hold it twice
    n_read = 0
    while n_read < len(memory) and (block := packed.read(min(_BLOCK, len(memory) - n_read))):
        memory[n_read : n_read + len(block)] = block
        n_read += len(block)
    if n_read < len(memory) or packed.read(1):
        raise ValueError(f"promises {len(memory)} bytes, but holds {n_read if n_read < len(memory) else 'more'}")


def _read(file: BinaryIO, begin: int, content: np.ndarray) -> None:
    """Fill `content` with what stands in the file from `begin` on."""
    if read_at(file, content, begin) < content.size:
        raise ValueError("is cut. The file is damaged")


def _header(file: BinaryIO, begin: int, n_bytes: int) -> bytes:
    header = bytearray(n_bytes)
    return bytes(header[: read_at(file, header, begin)])


def read_at(file: Any, memory: Any, begin: int) -> int:
    """Fill `memory` with what stands in the file from `begin` on; how many bytes there were. For several threads."""
    n_read, memory = 0, memoryview(memory)
    while n_read < len(memory):
        n = file.raw.read_at(memory[n_read:], begin + n_read)
        if not n:
            break
        n_read += n
    return n_read


class RawFile(io.FileIO):
    """A file, open for reading, that threads also read from any place, without moving where it is read next."""

    def __init__(self, path: str):
        super().__init__(path)
        self._lock = threading.Lock()

    def read_at(self, memory: memoryview, begin: int) -> int:
        """Read once, as ``readinto`` does, from `begin` on."""
        if hasattr(os, "preadv"):
            return os.preadv(self.fileno(), [memory], begin)
        with self._lock:  # not on this system
            before = self.tell()
            self.seek(begin)
            n_bytes = io.FileIO.readinto(self, memory)
            self.seek(before)
        return n_bytes or 0


# ------------------------------------------------------------------------------------------------ writing


class StoredZip:
    """A new zip in an empty `file`, whose members are stored as they are. :meth:`close` makes it one.

    Of a member's ``zipfile.ZipInfo`` only the name counts, and what it adds to the header. There are no times in the zip,
    and no names of machines.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._members = list[tuple[bytes, int, int, int]]()  # name, checksum, size, offset

    def add(self, member: zipfile.ZipInfo, write: Callable[[Any], object]) -> None:
        """Add a member: what ``write(stream)`` writes to the stream that it gets. Its header has 20 bytes more."""
        begin, stream = self._file.tell(), _Content(self._file, member)
        write(stream)
        stream.end(begin)
        self._members.append((member.filename.encode(), stream.checksum, stream.size, begin))

    def close(self) -> None:
        """Write the directory of what was added."""
        begin = self._file.tell()
        for member in self._members:
            self._file.write(_directory_entry(*member))
        end, n = self._file.tell(), len(self._members)
        size = end - begin
        if end > zipfile.ZIP64_LIMIT:
            record = (b"PK\6\6", 44, 45, 45, 0, 0, n, n, size, begin)
            self._file.write(struct.pack("<4sQ2H2L4Q", *record) + struct.pack("<4sLQL", b"PK\6\7", 0, end, 1))
            size = begin = _WIDE
        self._file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, n, n, size, begin, 0))


class _Content:
    """What a member is written to. Its header comes first: a small one is held back until that is known, before a large
    one room is left.
    """

    def __init__(self, file: BinaryIO, member: zipfile.ZipInfo):
        self._file, self._member = file, member
        self._held: list[np.ndarray] | None = []
        self.checksum = self.size = 0

    def write(self, content: bytes) -> int:
        self.size += len(content)
        if self._held is not None and self.size > BLOCK:
            self._file.write(_local_header(self._member, 0, 0))
            for block in self._held:
                self._file.write(block)
            self._held = None
        for first in range(0, len(content), BLOCK):  # in the cache when it is written
            block = np.frombuffer(content, np.uint8, min(BLOCK, len(content) - first), first)
            self.checksum = zlib.crc32(block, self.checksum)
            if self._held is None:
                self._file.write(block)
            else:
                self._held.append(block)
        return len(content)

    def end(self, begin: int) -> None:
        """Write the header at `begin`, and what was held back."""
        end = self._file.tell()
        if self._held is None:
            self._file.seek(begin)
        self._file.write(_local_header(self._member, self.checksum, self.size))
        if self._held is None:
            self._file.seek(end)
        for block in self._held or ():
            self._file.write(block)


_WIDE = 0xFFFFFFFF  # a size or an offset that stands in a field of 64 bits
_FIRST_DAY = 0x21  # 1980-01-01, the first that a zip knows


def _local_header(member: zipfile.ZipInfo, checksum: int, size: int) -> bytes:
    """What stands before the content of a member."""
    name, extra = member.filename.encode(), member.extra + struct.pack("<2H2Q", 1, 16, size, size)
    fields = (b"PK\3\4", 45, 0, zipfile.ZIP_STORED, 0, _FIRST_DAY, checksum, _WIDE, _WIDE, len(name), len(extra))
    return struct.pack("<4s5H3L2H", *fields) + name + extra


def _directory_entry(name: bytes, checksum: int, size: int, begin: int) -> bytes:
    """What a zip's directory says of a member: of Unix, wherever we are, so that the same array makes the same file."""
    extra = b""
    if max(size, begin) > zipfile.ZIP64_LIMIT:
        extra, size, begin = struct.pack("<2H3Q", 1, 24, size, size, begin), _WIDE, _WIDE
    made_by, mode = 3 << 8 | 45, 0o600 << 16
    fields = (b"PK\1\2", made_by, 45, 0, zipfile.ZIP_STORED, 0, _FIRST_DAY, checksum, size, size, len(name), len(extra))
    return struct.pack("<4s6H3L5H2L", *fields, 0, 0, 0, mode, begin) + name + extra
