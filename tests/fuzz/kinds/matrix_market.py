"""Matrix Market, plain and gzipped."""

from __future__ import annotations

import gzip
import os
import random
import re

from cvrarray import files

from .. import edits, judge, meaning

_TEXTS = {
    "real": "coordinate real general\n3 4 4\n1 1 1.5\n3 2 -2\n1 4 2e3\n2 2 0\n",
    "commented": "coordinate real general\n% a comment\n\n%\n3 3 2\n\n1 1 1\n3 2 -0.0\n",
    "integer": "coordinate integer symmetric\n3 3 3\n1 1 7\n3 1 -4\n3 2 5\n",
    "skew": "coordinate integer skew-symmetric\n3 3 2\n2 1 3\n3 2 -9\n",
    "unsigned": "coordinate unsigned-integer general\n2 2 2\n1 1 18446744073709551615\n2 2 1\n",
    "complex": "coordinate complex hermitian\n2 2 2\n1 1 5 0\n2 1 3 -4\n",
    "pattern": "coordinate pattern symmetric\n3 3 3\n2 1\n3 3\n3 1\n",
    "array": "array real general\n2 3\n1\n0\n-3\n4\n5e-1\n6\n",
    "complex array": "array complex hermitian\n2 2\n1 0\n2 3\n4 0\n",
    "skew array": "array integer skew-symmetric\n3 3\n1\n2\n3\n",
    "empty": "coordinate real general\n0 3 0\n",
}
BASES = [*_TEXTS, *(f"{name}.gz" for name in ("real", "integer", "array"))]

_NUMBERS = ("0", "-1", "2", "4", "5", "2147483648", "4294967297", "100000000", "9223372036854775807", "-9223372036854775808")
_NUMBERS += (
    "18446744073709551617",
    "1e308",
    "1e999",
    "-0.0",
    "nan",
    "-inf",
    ".5",
    "5.",
    "1.5.2",
    "0x10",
    "1D5",
    "+1",
    "1e",
    "",
)
_WORDS = ("matrix", "coordinate", "array", "real", "integer", "complex", "pattern", "unsigned-integer", "general", "symmetric")
_WORDS += ("skew-symmetric", "hermitian", "%", "\n", "%\n", "\r\n", "\0", "%%MatrixMarket", "real general", "general extra")


def propose(rng: random.Random, base: str) -> list[edits.Edit]:
    text = _text(base)
    found: list[edits.Edit] = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        kind = rng.random()
        if kind < 0.7:
            word = str(edits.number(rng)) if rng.random() < 0.3 else rng.choice(_NUMBERS if rng.random() < 0.8 else _WORDS)
            found.append(["word", rng.randrange(len(text.split())), word])
        elif kind < 0.98:
            found.append(edits.propose_bytes(rng, len(text), tuple(word.encode() for word in _NUMBERS + _WORDS)))
        elif kind < 0.9995:
            found.append(["zip", edits.propose_bytes(rng, 100)])
        else:  # a small file when it is gzipped
            found.append(["comments", rng.choice((10, 1000, 300_000))])
    return found


def content(base: str, recipe: list[edits.Edit]) -> tuple[bytes, bytes]:
    """The file, and the text in it."""
    text = _text(base)
    for kind, *what in recipe:
        if kind == "word":
            text = _with_word(text, *what)
        elif kind == "comments":
            head, _, rest = text.partition("\n")
            text = f"{head}\n" + "%" * 60 + ("\n%" + " " * 60) * what[0] + f"\n{rest}"
        elif kind != "zip":
            text = edits.apply_bytes(text.encode("latin-1"), [kind, *what]).decode("latin-1")
    raw = text.encode("latin-1")
    file = gzip.compress(raw, 1, mtime=0) if base.endswith(".gz") else raw
    for edit in recipe:
        if edit[0] == "zip" and base.endswith(".gz"):
            file = edits.apply_bytes(file, edit[1])
    return file, raw


def examine(base: str, recipe: list[edits.Edit], folder: str) -> tuple[str, int]:
    """What the package makes of a recipe, and the bytes of the input."""
    file, text = content(base, recipe)
    path = os.path.join(folder, "m.mtx")
    with open(path, "wb") as stream:
        stream.write(file)
    try:
        csr = files.read_csr(path)
    except Exception as error:
        return judge.refused(error, (ValueError,), path), len(file)
    if text.startswith(b"%"):
        try:
            shape, entries = meaning.of_text(text.decode("latin-1"))
        except (meaning.Invalid, ValueError, LookupError) as error:
            raise judge.Violation(f"accepted what says nothing: {error}") from error
        judge.same(csr, shape, entries)
    judge.accepted(judge.converted(csr, len(text)), len(text))
    return "accepted", len(file)


def _text(base: str) -> str:
    return "%%MatrixMarket matrix " + _TEXTS[base.removesuffix(".gz")]


def _with_word(text: str, k: int, word: str) -> str:
    """`text` with another word in the place of its k-th."""
    words = re.split(r"(\s+)", text)
    words[2 * k % (len(words) | 1)] = word
    return "".join(words)
