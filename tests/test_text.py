"""Numbers in text, and checksums of files: what compiled code reads is what Python, SciPy and zlib make of it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from checks import assert_same_bits

import cvrarray
from cvrarray import files
from cvrarray.files import matrix_market, npz

BANNER = "%%MatrixMarket matrix coordinate {} general\n"


def spellings(rng, count):
    """Numbers as programs write them, of every size, and as they never should."""
    for bits in rng.integers(0, 2**64, count, dtype=np.uint64):
        value = float(bits.view(np.float64)) if rng.random() < 0.5 else float(rng.normal() * 10.0 ** rng.integers(-30, 30))
        yield from (repr(value), f"{value:.15g}", f"{value:.18e}", f"{value:.30E}", f"{value:.3g}")
    for digits in range(1, 45):  # halfway between two numbers, beyond words, and beyond what is looked at together
        yield from (str(2**digits + 1), "9" * digits, "0" * digits + "5", "0." + "0" * digits + "12345678901234567890123")
        yield from (
            f"{2**53 + 1}.{'0' * digits}",
            f"{2**53 + 1}.{'0' * digits}1",
            f"1e-{digits}",
            f"-{'1' * digits}.{'7' * digits}e9",
        )
    yield from "9007199254740993 9007199254740992.5 1.7976931348623158e308 1e309 4.9e-324 2.2250738585072011e-308".split()
    yield from "-0 -0.0 0e999999999 1e-999999999 1e+007 5. .5 nan -NaN inf -Infinity 1e00000000001 1e99999 0.1e-342".split()
    yield from ["7" * 200, "0." + "3" * 500, "1" + "0" * 100 + "e-100"]


def test_numbers_are_those_of_python(tmp_path):
    """Bit by bit, wherever in a line they stand."""
    rng = np.random.default_rng(1)
    words = list(spellings(rng, 300))
    lines = [f"{' ' * (k % 70)}1{' ' * (k % 5 + 1)}{k + 1}\t{word}{' ' * (k % 3)}" for k, word in enumerate(words)]
    path = tmp_path / "m.mtx"
    path.write_text(BANNER.format("real") + f"1 {len(words)} {len(words)}\n" + "\n".join(lines))
    assert_same_bits(files.read_csr(path).data, np.array([float(word) for word in words]))


@pytest.mark.parametrize("field", ["integer", "unsigned-integer"])
def test_integers_are_those_of_python(field, tmp_path):
    """To the last of their dtype."""
    last = 2**63 - 1 if field == "integer" else 2**64 - 1
    numbers = [0, last, last - 1, *(10**n for n in range(19)), *(10**n - 1 for n in range(1, 19))]
    numbers += [-n for n in numbers] + [-(2**63)] if field == "integer" else []
    path = tmp_path / "m.mtx"
    lines = [f"1 {k + 1} {number:0{k % 30}d}" for k, number in enumerate(numbers)]
    path.write_text(BANNER.format(field) + f"1 {len(numbers)} {len(numbers)}\n" + "\n".join(lines))
    assert files.read_csr(path).data.tolist() == numbers


@pytest.mark.parametrize("n_threads", [1, 3])
def test_blocks_and_threads(n_threads, tmp_path, monkeypatch):
    """The arrays do not depend on how lines are shared out, and the first fault of a file is the one that is named."""
    monkeypatch.setattr(matrix_market, "BLOCK", 512)
    monkeypatch.setattr(matrix_market, "_LEFT", 3)
    rng = np.random.default_rng(2)
    S = scipy.sparse.random_array((300, 300), density=0.05, rng=rng, format="coo")
    S.data[::7] = np.nan  # left to Python
    path = tmp_path / "m.mtx"
    scipy.io.mmwrite(path, S)
    text = path.read_text().replace("\n", "\n \n\r\n", 900)
    path.write_text(text, newline="")
    monkeypatch.setattr("cvrarray.files.lines.get_num_threads", lambda: n_threads)
    for _ in range(5):
        found = files.read_csr(path)
        np.testing.assert_array_equal(found.toarray(), S.toarray())
    lines = text.split("\n")
    lines[1500], lines[2500], lines[-2] = "1 x 2", "301 1 1", "1"
    path.write_text("\n".join(lines), newline="")
    for _ in range(5):
        with pytest.raises(ValueError, match="line 1501: must read 'row column number'; got '1 x 2'"):
            files.read_csr(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_members(compressed, tmp_path, monkeypatch):
    """Read by several threads; damage is found wherever it is."""
    monkeypatch.setattr(npz, "get_num_threads", lambda: 3)
    S = scipy.sparse.random_array((200, 200), density=0.2, rng=np.random.default_rng(4), format="csr")
    path = tmp_path / "m.npz"
    scipy.sparse.save_npz(path, S, compressed=compressed)
    assert_same_bits(files.read_csr(path).data, S.data)
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 3, len(content) // 3 * 2, 9000):
        content[at] ^= 4
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"member \w+.npy: "):
            cvrarray.read(path)
        content[at] ^= 4
