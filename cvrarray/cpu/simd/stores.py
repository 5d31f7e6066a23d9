"""What writes vectors: to arrays, to scattered places, and to scratch space on the stack."""

from __future__ import annotations

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cvrarray.core.tables import WARP
from cvrarray.cpu.simd import llvm
from cvrarray.cpu.simd.loads import LINE_BYTES

SINGLE, BATCH_ROW = (0,), (0,) * 4  #: for :func:`scratch`: 32 numbers, and 128


@intrinsic
def scratch(typingctx, like, row):
    """Pointer to space for 32 rows of as many numbers as `row` is long, of the dtype of the array `like`.

    The space is on the stack of the function that calls, uninitialised.
    """

    def codegen(context, builder, signature, args):
        return cgutils.alloca_once(builder, context.get_data_type(like.dtype), size=WARP * len(row))

    return types.CPointer(like.dtype)(like, row), codegen


@intrinsic
def pointer(typingctx, array, at):
    """Pointer to element `at` of a contiguous array, or `at` elements on from a pointer.

    Unlike an array's, its indices never count from the end: loops over it compile to plain or vector instructions.
    """
    if isinstance(array, types.BaseTuple):
        result = types.NamedTuple([types.CPointer(member.dtype) for member in array.types], array.instance_class)
    else:
        result = types.CPointer(array.dtype)

    def codegen(context, builder, signature, args):
        found = llvm.pointer(context, builder, array, *args)
        return context.make_tuple(builder, result, found) if isinstance(found, list) else found

    return result(array, types.intp), codegen


@intrinsic
def store(typingctx, acc, out, at, width):
    """``out[at : at + n] = acc``, n the length of `width`: the first n elements of `acc`."""

    def codegen(context, builder, signature, args):
        vectors = [llvm.first(builder, vector, len(width)) for vector in cgutils.unpack_tuple(builder, args[0])]
        llvm.store_parts(builder, vectors, llvm.pointer(context, builder, out, args[1], args[2]))
        return context.get_dummy_value()

    return types.none(acc, out, types.intp, width), codegen


@intrinsic
def stream(typingctx, acc, out, at, past):
    """:func:`store`; where `past`, one that does not read the lines that it writes, and leaves none of them in a cache.

    Of all 32 elements: `out` begins at a cache line, and `at` is a multiple of 32. Worth it for what is larger than the
    caches: a plain store reads each line first.
    """

    def codegen(context, builder, signature, args):
        vectors = cgutils.unpack_tuple(builder, args[0])
        start = llvm.pointer(context, builder, out, args[1], args[2])
        n_bytes = WARP * context.get_abi_sizeof(start.type.pointee)
        with builder.if_else(args[3]) as (streamed, stored):
            with streamed:
                llvm.store_parts(builder, vectors, start, past_align=math.gcd(n_bytes, LINE_BYTES))
            with stored:
                llvm.store_parts(builder, vectors, start)
        return context.get_dummy_value()

    return types.none(acc, out, types.intp, types.boolean), codegen


@intrinsic
def scatter_add(typingctx, terms, out, offsets, at):
    """``out[offsets[at + l]] += terms[l]`` for l in order; `out` is a pointer."""

    def codegen(context, builder, signature, args):
        dtype = terms.dtype
        first = llvm.pointer(context, builder, offsets, args[2], args[3])
        # Single numbers are cheaper to load from the stack than to extract from vectors.
        spilled = cgutils.alloca_once(builder, context.get_data_type(dtype), size=WARP)
        llvm.store_parts(builder, cgutils.unpack_tuple(builder, args[0]), spilled)
        for element in range(WARP):
            to = builder.gep(args[1], [llvm.index(builder, builder.gep(first, [llvm.I32(element)]))])
            term = llvm.load_parts(builder, dtype, builder.gep(spilled, [llvm.I32(element)]), 1)
            llvm.store_parts(builder, llvm.add(builder, llvm.load_parts(builder, dtype, to, 1), term), to)
        return context.get_dummy_value()

    return types.none(terms, out, offsets, types.intp), codegen


@intrinsic
def gather_store(typingctx, source, offsets, mask, padding, base, out, at):
    """``out[at + l] = number - base``; integers.

    The number is ``source[offsets[l]]`` in the elements of `mask`, else `padding`; the difference must fit `out`.
    `source` and `offsets` are pointers, and an offset may be negative.
    """

    def codegen(context, builder, signature, args):
        first, offsets, mask, padding, base, out_array, at = args
        columns = llvm.load_vector(builder, offsets, WARP)
        pointers = llvm.vector_of_pointers(builder, first.type.pointee, first, columns)
        vector = ir.VectorType(first.type.pointee, WARP)
        padding, base = (
            llvm.splat(builder, builder.trunc(n, vector.element) if vector.element.width < 64 else n) for n in (padding, base)
        )
        numbers = builder.sub(llvm.masked_gather(builder, pointers, mask, padding), base)
        to = llvm.pointer(context, builder, out, out_array, at)
        narrow = ir.VectorType(to.type.pointee, WARP)
        numbers = builder.trunc(numbers, narrow) if narrow.element.width < vector.element.width else numbers
        llvm.store_parts(builder, [numbers], to)
        return context.get_dummy_value()

    return types.none(source, offsets, types.uint32, types.intp, types.intp, out, types.intp), codegen


@intrinsic
def advance(typingctx, numbers, mask):
    """``numbers[l] += 1`` in the elements of `mask`; `numbers` is from :func:`scratch`."""

    def codegen(context, builder, signature, args):
        before = llvm.load_vector(builder, args[0], WARP)
        after = builder.add(before, builder.zext(llvm.bits(builder, args[1]), before.type))
        builder.store(after, builder.bitcast(args[0], after.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(numbers, types.uint32), codegen


@intrinsic
def scale(typingctx, array, at, factor, mask, out):
    """``out[l] = array[at + l] * factor`` in the elements of `mask`, 0 in others; integers; `out` is a pointer."""

    def codegen(context, builder, signature, args):
        numbers = llvm.load_vector(builder, llvm.pointer(context, builder, array, args[0], args[1]), WARP)
        factor, mask, start = args[2:]
        wide = ir.VectorType(start.type.pointee, WARP)
        numbers = builder.zext(numbers, wide) if numbers.type != wide else numbers
        factor = builder.trunc(factor, wide.element) if wide.element.width < 64 else factor
        scaled = builder.mul(numbers, llvm.splat(builder, factor))
        scaled = builder.select(llvm.bits(builder, mask), scaled, wide(None))
        builder.store(scaled, builder.bitcast(start, wide.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, types.uint32, out), codegen
