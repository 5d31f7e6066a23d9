"""Text of numbers, read and checked in one pass.

Digits are read eight at a time (Lemire, "Number parsing at a gigabyte per second", Software: Practice and Experience
51, 2021, section 4), and decimal numbers rounded correctly by the algorithm of sections 5 to 8 there: the product of
their digits, as an integer, with a power of five of 128 bits. Where that is not certain, or a line is anything but a
plain entry, the line is left to the caller.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from cvrarray.cpu import simd
from cvrarray.cpu.runtime.compiler import helper, inlined, kernel
from cvrarray.cpu.simd import words

INTEGER, UNSIGNED, REAL = range(3)  #: values: digits that may have a sign; digits; a decimal number

LEAD = 64  #: bytes before a text in its buffer; the last of them is a newline
PAD = 128  #: bytes behind a text in its buffer
DIGITS = 19  #: of decimal digits so many fit a word
EXACT_DIGITS = 15  #: of an integer that is a float64
MOST_DIGITS = 18  #: of an integer that is read here: then nothing can wrap
LEAST_POWER, MOST_POWER = -342, 308  #: powers of ten beyond which a number of DIGITS digits is 0 or inf

_TAB, _NEWLINE, _RETURN, _SPACE, _PLUS, _MINUS, _POINT, _E, _ZERO, _NINE = b"\t\n\r +-.e09"
_ZEROS = np.uint64(0x0101010101010101 * _ZERO)
_PAIRS, _HUNDREDS, _ONES = np.uint64(0x000000FF000000FF), np.uint64(0x000F424000000064), np.uint64(0x0000271000000001)
_MANTISSA, _HIDDEN = np.uint64(52), np.uint64(1 << 52)
_U1, _U3, _U8, _U16, _U32, _U9, _U10 = (np.uint64(n) for n in (1, 3, 8, 16, 32, 9, 10))
_UNCERTAIN = np.uint64(2**64 - 1)  #: no number's bits but a nan's


class Form(NamedTuple):
    """What an entry consists of."""

    places: int  # 2: its row and column, counted from 1, come first; or 0
    values: int  # numbers that follow: 0, 1 or 2
    kind: int  # of these: INTEGER, UNSIGNED or REAL
    n_rows: int
    n_cols: int
    tens: np.ndarray  # (20,) uint64: powers of ten
    kept: np.ndarray  # (9,) uint64: words of which the last 0 to 8 letters are kept
    fives: np.ndarray  # see powers_of_five


class Entries(NamedTuple):
    """Where entries go."""

    row: np.ndarray  # (most,) int32 or int64, counted from 0; of entries without places (0,)
    col: np.ndarray
    words: np.ndarray  # (values * most,) uint64: the bits of the values
    most: int


@cache
def powers_of_five() -> np.ndarray:
    """(n, 2) uint64: the 128 highest bits of 5 to the power of LEAST_POWER to MOST_POWER, higher word first; those of
    negative powers rounded up.
    """
    found = []
    for power in range(LEAST_POWER, MOST_POWER + 1):
        five = 5 ** abs(power)
        if power < 0:
            bits = (five - 1).bit_length()
            top = (1 << (2 * bits + 128)) // five + 1 if power < -27 else (1 << (bits + 127)) // five + 1
        else:
            top = five << 128
        top >>= top.bit_length() - 128
        found.append((top >> 64, top & (2**64 - 1)))
    return np.array(found, np.uint64)


def form(places: int, values: int, kind: int, shape: tuple[int, int]) -> Form:
    """The :class:`Form` of entries in a matrix of `shape`."""
    tens = np.array([10**n for n in range(DIGITS + 1)], np.uint64)
    kept = np.array([2**64 - 2 ** (64 - 8 * n) for n in range(9)], np.uint64)
    return Form(places, values, kind, *shape, tens, kept, powers_of_five())


def count_lines(text: np.ndarray, end: int) -> tuple[int, int]:
    """Lines from ``text[LEAD]`` to before ``text[end]``, where the last one ends; and how many of them are not blank."""
    return _count_lines(text, end)  # type: ignore[no-any-return]


def parse(text: np.ndarray, begin: int, end: int, at: int, to: Entries, of: Form, left: np.ndarray) -> tuple[int, int, int]:
    """Write the entries in the lines from ``text[begin]`` to before ``text[end]``, where the last one ends, to the
    places from `at` on.

    Lines that are left to the caller go to `left`, (n, 2) int64: where a line begins, and the place of its entry.
    Nothing after them was judged by them.

    Returns
    -------
    where it stopped, the next free place, and how many lines are left to the caller. It stops at the end, when `left` is
    full, and at an entry for which there is no room.
    """
    return _parse(text, begin, end, at, to, of, left)  # type: ignore[no-any-return]


@kernel
def _count_lines(text, end):
    letters = simd.pointer(text, 0)
    n_lines = n_blank = 0
    for at in range(LEAD, end, words.LETTERS):
        newlines = words.letters_equal(letters, at, _NEWLINE)
        if end - at < words.LETTERS:
            newlines &= (_U1 << np.uint64(end - at)) - _U1
        n_lines += words.ones(newlines)
        after_blank = newlines & words.letters_below(letters, at - 1, _SPACE + 1)
        while after_blank:
            k = at + words.trailing_zeros(after_blank) - 1
            after_blank &= after_blank - _U1
            while _is_blank(letters[k]) or letters[k] == _RETURN:
                k -= 1
            n_blank += letters[k] == _NEWLINE
    return n_lines, n_lines - n_blank


@kernel
def _parse(text, begin, end, at, to, of, left):
    letters = simd.pointer(text, 0)
    k, n_left = begin, 0
    while k < end:
        # found before the entry is read, so that the processor begins with the next line meanwhile
        newline = _next_newline(letters, k)
        begin = _after_blanks(letters, k)
        if letters[begin] <= _SPACE and _after_line(letters, begin) == newline:  # a blank one
            k = newline + 1
            continue
        if at == to.most or n_left == len(left):
            return k, at, n_left
        if _entry(letters, begin, at, to, of) != newline:
            left[n_left, 0], left[n_left, 1] = k, at
            n_left += 1
        k = newline + 1
        at += 1
    return k, at, n_left


@inlined
def _entry(letters, k, at, to, of):
    """Where the line of an entry ends; -1 where it is not one that is read here."""
    wrong = 0
    window = k, words.letters_outside(letters, k, _ZERO, _NINE)
    if of.places:
        after = _after_digits(window, k)
        row = _number(letters, after, after - k, np.uint64(0), of)
        wrong |= (after == k) | (after - k > MOST_DIGITS)
        k = _after_blanks(letters, after)
        wrong |= k == after
        window = _moved(letters, window, k)
        after = _after_digits(window, k)
        col = _number(letters, after, after - k, np.uint64(0), of)
        wrong |= (after == k) | (after - k > MOST_DIGITS)
        i, j = np.int64(row) - 1, np.int64(col) - 1
        wrong |= (i < 0) | (i >= of.n_rows) | (j < 0) | (j >= of.n_cols)
        to.row[at], to.col[at] = i, j
        k = after
    for part in range(of.values):
        after = _after_blanks(letters, k)
        wrong |= (after == k) & ((of.places > 0) | (part > 0))
        window = _moved(letters, window, after)
        k, bits, is_good = _value(letters, after, window, of)
        wrong |= not is_good
        to.words[of.values * at + part] = bits
    return -1 if wrong else _after_line(letters, k)


@inlined
def _value(letters, k, window, of):
    """Where a value ends, its bits, and whether it is certain."""
    is_negative = letters[k] == _MINUS
    k += is_negative
    after = _after_digits(window, k)
    whole = _number(letters, after, after - k, np.uint64(0), of)
    if of.kind != REAL:
        value = np.uint64(-np.int64(whole)) if is_negative else whole
        is_good = (after > k) & (after - k <= MOST_DIGITS) & ((of.kind == INTEGER) | (not is_negative))
        return after, value, is_good
    begin, n_digits, power = k, after - k, 0
    k = after
    if letters[k] == _POINT:
        k = _after_digits(window, after + 1)
        power = after + 1 - k
        n_digits -= power
        whole = _number(letters, k, -power, whole, of)
    end = k
    is_good = n_digits > 0
    if letters[k] | 32 == _E:
        k += 1
        is_below = letters[k] == _MINUS
        k += is_below | (letters[k] == _PLUS)
        after = _after_digits(window, k)
        is_good &= (after > k) & (after - k <= 5)
        exponent = np.int64(_number(letters, after, min(after - k, 5), np.uint64(0), of))
        power += -exponent if is_below else exponent
        k = after
    bits = _decimal(letters, begin, end, whole, n_digits, power, of.fives) if is_good else _UNCERTAIN
    return k, bits | np.uint64(is_negative) << np.uint64(63), bits != _UNCERTAIN


@helper
def _decimal(letters, begin, end, whole, n_digits, power, fives):
    """Bits of the float64 next to the digits from `begin` to before `end`, of which `whole` consists unless there are too
    many, times ten to the `power`.
    """
    if n_digits <= EXACT_DIGITS and power == 0:
        return words.float_bits(np.float64(np.int64(whole)))
    if n_digits <= DIGITS:
        return _nearest(whole, power, fives)
    whole, kept, k = np.uint64(0), 0, begin
    while k < end and kept < DIGITS:
        if letters[k] != _POINT:
            whole = whole * _U10 + np.uint64(letters[k] - 48)
            kept += whole > 0
            n_digits -= 1
        k += 1
    bits = _nearest(whole, power + n_digits, fives)
    # the digits that are left out lie between nothing and one of the last that is kept
    return bits if n_digits == 0 or bits == _nearest(whole + _U1, power + n_digits, fives) else _UNCERTAIN


@helper
def _nearest(whole, power, fives):
    """Bits of the float64 next to ``whole * 10 ** power``; _UNCERTAIN where it is tiny or too large."""
    if whole == 0:
        return np.uint64(0)
    if power < LEAST_POWER or power > MOST_POWER:
        return _UNCERTAIN
    n_zeros = words.leading_zeros(whole)
    whole <<= np.uint64(n_zeros)
    high, low = words.product_of_words(whole, fives[power - LEAST_POWER, 0])
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):  # the rest of the power may matter
        more, _ = words.product_of_words(whole, fives[power - LEAST_POWER, 1])
        low += more
        high += np.uint64(more > low)
    top = high >> np.uint64(63)
    shift = top + _U9
    mantissa = high >> shift
    exponent = ((217706 * power) >> 16) + 63 + np.int64(top) - n_zeros + 1023
    if low <= _U1 and -4 <= power <= 23 and mantissa & _U3 == _U1 and mantissa << shift == high:
        mantissa ^= _U1  # halfway between two numbers: to the even one
    mantissa = (mantissa + (mantissa & _U1)) >> _U1
    if mantissa == _HIDDEN << _U1:
        mantissa, exponent = _HIDDEN, exponent + 1
    if exponent <= 0 or exponent >= 0x7FF:
        return _UNCERTAIN
    return (mantissa ^ _HIDDEN) | np.uint64(exponent) << _MANTISSA


@inlined
def _moved(letters, window, k):
    """A window from `k` on, unless the old one reaches far enough; see :func:`_after_digits`."""
    if k - window[0] <= words.LETTERS // 2:
        return window
    return k, words.letters_outside(letters, k, _ZERO, _NINE)


@inlined
def _after_digits(window, k):
    """Where the digits from `k` on end; `k` where they reach beyond the window.

    A window is a place, and which of the letters from there on are no digits: to find the end of a number so takes less
    time than to look for it among the digits, and what follows it waits for nothing else.
    """
    n = words.trailing_zeros(window[1] >> np.uint64(min(k - window[0], words.LETTERS - 1)))
    return k + n if n < words.LETTERS else k


@inlined
def _number(letters, end, n, value, of):
    """The number that begins with the digits of `value` and goes on with the `n` digits before `end`; it means nothing
    where it does not fit a word.
    """
    low = _eight(letters, end, min(n, 8), of)
    if n <= 8:
        return value * of.tens[n] + low
    high = _eight(letters, end - 8, min(n - 8, 8), of) + of.tens[8] * _eight(letters, end - 16, min(max(n - 16, 0), 8), of)
    return value * of.tens[min(n, DIGITS)] + high * of.tens[8] + low


@inlined
def _eight(letters, end, n, of):
    """The number of the `n` digits, at most 8, before `end`."""
    word = (words.load_word(letters, end - 8) ^ _ZEROS) & of.kept[n]
    word = word * _U10 + (word >> _U8)
    return ((word & _PAIRS) * _HUNDREDS + ((word >> _U16) & _PAIRS) * _ONES) >> _U32


@inlined
def _next_newline(letters, k):
    found = words.letters_equal(letters, k, _NEWLINE)
    while not found:
        k += words.LETTERS
        found = words.letters_equal(letters, k, _NEWLINE)
    return k + words.trailing_zeros(found)


@inlined
def _is_blank(letter):
    return (letter == _SPACE) | (letter == _TAB)


@inlined
def _after_blanks(letters, k):
    while _is_blank(letters[k]):
        k += 1
    return k


@inlined
def _after_line(letters, k):
    """After the blanks, and the returns, that may end a line."""
    while _is_blank(letters[k]) or letters[k] == _RETURN:
        k += 1
    return k
