"""Text of numbers, checked byte by byte."""

from __future__ import annotations

import numpy as np

from cvrarray.cpu.runtime.compiler import inlined, kernel

COUNT, INTEGER, REAL = range(
    3
)  #: words: digits; digits that may have a sign; a number that may have a fraction and an exponent
_TAB, _NEWLINE, _RETURN, _SPACE, _PLUS, _MINUS, _POINT, _E = b"\t\n\r +-.e"


def are_lines(block: bytes, kinds: tuple[int, ...]) -> bool:
    """Whether all lines, of which the last one ends too, are blank or consist of words of these kinds.

    A False may be wrong: names of numbers (nan, inf) are not looked for.
    """
    return block.endswith(b"\n") and bool(_are_lines(np.frombuffer(block, np.uint8), np.array(kinds)))


@kernel
def _are_lines(text, kinds):
    k, n = np.int64(0), len(text)
    while k < n:
        k = _after_blanks(text, k)
        if text[k] != _NEWLINE and text[k] != _RETURN:
            for word in range(len(kinds)):
                after = _after_word(text, k, kinds[word])
                k = _after_blanks(text, after)
                if after < 0 or (word + 1 < len(kinds) and k == after):
                    return False
        while text[k] == _RETURN or text[k] == _SPACE or text[k] == _TAB:
            k += 1
        if text[k] != _NEWLINE:
            return False
        k += 1
    return True


@inlined
def _after_blanks(text, k):
    while k >= 0 and (text[k] == _SPACE or text[k] == _TAB):
        k += 1
    return k


@inlined
def _after_digits(text, k):
    while 48 <= text[k] <= 57:
        k += 1
    return k


@inlined
def _after_word(text, k, kind):
    """Where a word that begins at `k` ends; -1 where none of the kind begins there."""
    if kind != COUNT and text[k] == _MINUS:
        k += 1
    begin = k
    k = _after_digits(text, k)
    n_digits = k - begin
    if kind == REAL:
        if text[k] == _POINT:
            k = _after_digits(text, k + 1)
            n_digits = k - begin - 1
        if n_digits and text[k] | 32 == _E:
            k += 2 if text[k + 1] == _PLUS or text[k + 1] == _MINUS else 1
            begin = k
            k = _after_digits(text, k)
            n_digits = k - begin
    return k if n_digits else -1
