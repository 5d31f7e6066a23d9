"""64-bit words: eight letters of a text at a time, the bits of a number, and products of twice their length."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cvrarray.cpu.simd import llvm

LETTERS = 64  #: letters that :func:`letters_equal` and :func:`letters_below` look at


@intrinsic
def load_word(typingctx, text, at):
    """The eight letters from ``text[at]`` on, of which the first is the lowest byte; `text` is a pointer to uint8."""

    def codegen(context, builder, signature, args):
        start = builder.gep(args[0], [args[1]])
        return builder.load(builder.bitcast(start, llvm.I64.as_pointer()), align=1)

    return types.uint64(text, types.intp), codegen


@intrinsic
def letters_equal(typingctx, text, at, letter):
    """Bit l is set where ``text[at + l] == letter``, l from 0 to 63; `text` is a pointer to uint8."""

    def codegen(context, builder, signature, args):
        return _compared(builder, "==", args)

    return types.uint64(text, types.intp, types.uint8), codegen


@intrinsic
def letters_below(typingctx, text, at, letter):
    """Bit l is set where ``text[at + l] < letter``, l from 0 to 63; `text` is a pointer to uint8."""

    def codegen(context, builder, signature, args):
        return _compared(builder, "<", args)

    return types.uint64(text, types.intp, types.uint8), codegen


@intrinsic
def letters_outside(typingctx, text, at, first, last):
    """Bit l is set where ``text[at + l]`` is no letter from `first` to `last`, l from 0 to 63; `text` is a pointer to
    uint8.
    """

    def codegen(context, builder, signature, args):
        text, at, first, last = args
        letters = llvm.load_vector(builder, builder.gep(text, [at]), LETTERS)
        from_first = builder.sub(letters, llvm.splat(builder, first, LETTERS))
        found = builder.icmp_unsigned(">", from_first, llvm.splat(builder, builder.sub(last, first), LETTERS))
        return builder.bitcast(found, llvm.I64)

    return types.uint64(text, types.intp, types.uint8, types.uint8), codegen


@intrinsic
def ones(typingctx, word):
    """How many bits of a word are 1."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.intp(types.uint64), codegen


@intrinsic
def trailing_zeros(typingctx, word):
    """How many bits of a word, from the lowest on, are 0; 64 where all are."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], llvm.I1(0))

    return types.intp(types.uint64), codegen


@intrinsic
def leading_zeros(typingctx, word):
    """How many bits of a word, from the highest on, are 0; 64 where all are."""

    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], llvm.I1(0))

    return types.intp(types.uint64), codegen


@intrinsic
def float_bits(typingctx, value):
    """The bits of a float64."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], llvm.I64)

    return types.uint64(types.float64), codegen


@intrinsic
def product_of_words(typingctx, a, b):
    """The product of two words as two: the higher, the lower."""

    def codegen(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(arg, wide) for arg in args))
        halves = [builder.trunc(builder.lshr(product, wide(64)), llvm.I64), builder.trunc(product, llvm.I64)]
        return context.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), codegen


def _compared(builder, how, args):
    text, at, letter = args
    letters = llvm.load_vector(builder, builder.gep(text, [at]), LETTERS)
    found = builder.icmp_unsigned(how, letters, llvm.splat(builder, letter, LETTERS))
    return builder.bitcast(found, llvm.I64)
