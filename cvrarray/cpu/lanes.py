"""Arithmetic on 32 lanes at once, for use inside Numba functions: numbers that stay in vector registers.

Numba keeps even a small array in memory, which costs a load and a store for every product. A :class:`Lanes` is an LLVM
vector of 32 elements instead (two of them, real and imaginary, for complex numbers), and LLVM maps it to the registers
of the machine: 4 of AVX-512 for float64, 8 of AVX2, 16 of SSE or NEON. Masks are uint32, bit l for lane l.

Functions that use these are compiled with ``_nrt=False`` (see :data:`OPTIONS`): else Numba counts references to every
array around every call, two atomic additions each, which costs more than the products do.
"""

from __future__ import annotations

import math

from llvmlite import binding, ir
from numba import typeof, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from cvrarray.core.tables import THREES, WARP

#: For ``njit`` of a kernel: threads run it side by side, it is cached on disk, and arrays are used, never made.
OPTIONS = {"nogil": True, "cache": True, "_nrt": False, "no_cfunc_wrapper": True}

BLOCK_SIZES = (2, 3, 4, 6, 8)  #: those that :func:`multiply_add_blocks` takes; others would make too much code
WHOLE = (0,) * WARP  #: all lanes, where a function asks how many
RUN = 8  #: lanes that :func:`load_runs` looks at together: one odd row among 32 must not cost the other groups
LINE = 64  #: bytes of a cache line
L2 = 1 << 20  #: bytes of a core's second cache, about
AHEAD = 16  #: steps of 32 values that products ask for before they need them
AHEAD_IN_BLOCKS = 8  #: the same for blocks of 2 or more and for rows in threes, which take less time a value
AHEAD_INTO_L2 = 32  #: the same for wide columns in CVR
INTO_L2 = (0,)  #: for :func:`prefetch`; nothing, (), for L1
BATCH = 4 * WARP  #: sums that wait together until they are written
COMPRESSES = binding.get_host_cpu_features().get("avx512f", False)  #: else :func:`compress` is a long detour


def compiled(function, *args):
    """`function`, compiled for arguments of these types: a call then takes 0.3 us, where Numba's choice takes another 0.6."""
    return function.compile(tuple(typeof(arg) for arg in args))


def width(n_lanes: int) -> tuple[int, ...]:
    """A tuple as long as `n_lanes` for numbers of lanes that kernels are compiled for, else an empty one.

    A tuple's length is known when a kernel is compiled. Vectors have 32 lanes in any case; those beyond are left unused.
    """
    return (0,) * n_lanes if n_lanes in (THREES, WARP) else ()


_I1, _I8, _I32, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Lanes(types.Type):
    """32 numbers, or as many as told, of `dtype` (Numba's; not bool)."""

    def __init__(self, dtype: types.Type, count: int = WARP) -> None:
        self.dtype = dtype
        self.count = count
        super().__init__(name=f"Lanes({dtype}, {count})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        vector = ir.VectorType(manager.lookup(_real(lanes.dtype)).get_value_type(), lanes.count)
        super().__init__(manager, lanes, ir.LiteralStructType([vector] * len(_parts(lanes.dtype))))


@intrinsic
def zeros(typingctx, like):
    """32 zeros of the dtype of the array `like`."""
    lanes = Lanes(like.dtype)

    def codegen(context, builder, signature, args):
        return context.get_value_type(lanes)(None)

    return lanes(like), codegen


@intrinsic
def zero_row(typingctx, like, tile):
    """As many zeros as the tuple `tile` is long, of the dtype of the array `like`: part of a row of a matrix."""
    lanes = Lanes(like.dtype, len(tile))

    def codegen(context, builder, signature, args):
        return context.get_value_type(lanes)(None)

    return lanes(like, tile), codegen


@intrinsic
def add_row(typingctx, acc, array, at):
    """``acc + array[at : at + n]``, n the numbers that `acc` has."""

    def codegen(context, builder, signature, args):
        start = _pointer(context, builder, array, args[1], args[2])
        return cgutils.pack_struct(
            builder, _add(builder, cgutils.unpack_tuple(builder, args[0]), _load_parts(builder, acc.dtype, start, acc.count))
        )

    return acc(acc, array, types.intp), codegen


@intrinsic
def add(typingctx, a, b):
    """``a + b``"""

    def codegen(context, builder, signature, args):
        return cgutils.pack_struct(builder, _add(builder, *(cgutils.unpack_tuple(builder, arg) for arg in args)))

    return a(a, b), codegen


@intrinsic
def multiply_add_row(typingctx, acc, values, at, x, start):
    """``acc + values[at] * x[start : start + n]``, n the numbers that `acc` has; `values` and `x` are arrays or pointers."""

    def codegen(context, builder, signature, args):
        acc_vectors, values_array, at, x_array, start = args
        place = _pointer(context, builder, values, values_array, at)
        real = _real(acc.dtype)
        value = [
            _splat(builder, builder.extract_element(_convert(context, builder, part, _real(values.dtype), real), _I32(0)),
                   acc.count)
            for part in _load_parts(builder, values.dtype, place, 1)
        ]  # fmt: skip
        row = _load_parts(builder, acc.dtype, _pointer(context, builder, x, x_array, start), acc.count)
        return cgutils.pack_struct(builder, _multiply_add(builder, cgutils.unpack_tuple(builder, acc_vectors), value, row))

    return acc(acc, values, types.intp, x, types.intp), codegen


@intrinsic
def load(typingctx, array, at, like):
    """``array[at : at + 32]``, in the precision of the array `like` (real numbers stay real)."""
    lanes = Lanes(like.dtype if isinstance(array.dtype, types.Complex) else _real(like.dtype))

    def codegen(context, builder, signature, args):
        start = _pointer(context, builder, array, args[0], args[1])
        return cgutils.pack_struct(builder, _load_values(context, builder, array.dtype, start, _real(like.dtype)))

    return lanes(array, types.intp, like), codegen


@intrinsic
def load_first(typingctx, array, at, like, width):
    """:func:`load` of as many numbers as the tuple `width` is long, and 0 in the lanes beyond."""
    lanes = Lanes(like.dtype if isinstance(array.dtype, types.Complex) else _real(like.dtype))

    def codegen(context, builder, signature, args):
        start = _pointer(context, builder, array, args[0], args[1])
        vectors = _load_values(context, builder, array.dtype, start, _real(like.dtype), len(width))
        return cgutils.pack_struct(builder, [_padded(builder, vector) for vector in vectors])

    return lanes(array, types.intp, like, width), codegen


@intrinsic
def number(typingctx, values, at, like):
    """``values[at]``, one number: real ones in the precision of the array `like`."""
    dtype = values.dtype
    result = dtype if isinstance(dtype, types.Complex) else _real(like.dtype)

    def codegen(context, builder, signature, args):
        start = _pointer(context, builder, values, args[0], args[1])
        if isinstance(dtype, types.Complex):
            return builder.load(start)
        (vector,) = _load_parts(builder, dtype, start, 1)
        return builder.extract_element(_convert(context, builder, vector, dtype, result), _I32(0))

    return result(values, types.intp, like), codegen


@intrinsic
def load_each(typingctx, x, start, offsets, at):
    """``x[start + offsets[at + l]]`` in lane l, by 32 loads: the fastest way where x is in L1 or L2."""
    lanes = Lanes(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = _pointer(context, builder, x, args[0], args[1])
        first = _pointer(context, builder, offsets, args[2], args[3])
        return cgutils.pack_struct(builder, _insert_each(builder, x.dtype, x_start, first, range(WARP)))

    return lanes(x, types.intp, offsets, types.intp), codegen


@intrinsic
def load_threes(typingctx, x, start, offsets, at):
    """:func:`load_each` in the lanes before THREES, by one load for three where all of them come in threes of one offset.

    Rows that have the same columns, as the three of a mesh's vertex have, lie in neighbouring lanes, and stay there together.
    """
    lanes = Lanes(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = _pointer(context, builder, x, args[0], args[1])
        first = _pointer(context, builder, offsets, args[2], args[3])
        columns = _padded(builder, _load_vector(builder, first, THREES))
        if columns.type.element.width < 32:  # vectors of 16-bit numbers have no quick permutations of these
            columns = builder.zext(columns, ir.VectorType(_I32, WARP))
        three = [lane - lane % 3 if lane < THREES else lane for lane in range(WARP)]
        different = builder.icmp_unsigned("!=", columns, _shuffle(builder, columns, columns, three))
        first = _hidden(builder, first)
        alike = builder.icmp_unsigned("==", builder.bitcast(different, _I32), _I32(0))
        with builder.if_else(alike) as (once, singly):
            with once:
                few = [_fence(builder, part) for part in _insert_each(builder, x.dtype, x_start, first, range(0, THREES, 3))]
                spread = [min(lane, THREES - 1) // 3 for lane in range(WARP)]
                few = [_shuffle(builder, part, part, spread) for part in few]
                after_once = builder.block
            with singly:
                all_of_them = _insert_each(builder, x.dtype, x_start, first, range(THREES))
                after_singly = builder.block
        return cgutils.pack_struct(builder, _phi(builder, (few, after_once), (all_of_them, after_singly)))

    return lanes(x, types.intp, offsets, types.intp), codegen


@intrinsic
def load_runs(typingctx, x, start, offsets, at):
    """:func:`load_each` that loads 8 lanes at once where their offsets count up by ones, as they do in stencils."""
    lanes = Lanes(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = _pointer(context, builder, x, args[0], args[1])
        first = _pointer(context, builder, offsets, args[2], args[3])
        in_runs = _in_runs(builder, first)
        first = _hidden(builder, first)
        pieces = []
        for lane in range(0, WARP, RUN):
            here = builder.gep(first, [_I32(lane)])
            piece = _I32((1 << RUN) - 1 << lane)
            with builder.if_else(builder.icmp_unsigned("==", builder.and_(in_runs, piece), piece)) as (run, scattered):
                with run:
                    whole = _load_parts(builder, x.dtype, builder.gep(x_start, [_index(builder, here)]), RUN)
                    after_run = builder.block
                with scattered:
                    each = _insert_each(builder, x.dtype, x_start, here, range(RUN))
                    after_scattered = builder.block
            pieces.append(_phi(builder, (whole, after_run), (each, after_scattered)))
        return cgutils.pack_struct(builder, [_join(builder, parts) for parts in zip(*pieces, strict=True)])

    return lanes(x, types.intp, offsets, types.intp), codegen


@intrinsic
def gather(typingctx, x, start, offsets, at, mask):
    """``x[start + offsets[at + l]]`` in the lanes of `mask`, 0 in others, by the machine's gather instruction.

    It keeps more cache misses in flight than 32 loads do, and costs more where there is none.
    """
    lanes = Lanes(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = _pointer(context, builder, x, args[0], args[1])
        columns = _load_vector(builder, _pointer(context, builder, offsets, args[2], args[3]), WARP)
        columns = builder.zext(columns, ir.VectorType(_I32, WARP)) if columns.type.element.width < 32 else columns
        vectors = []
        for part in _parts(x.dtype):
            first = builder.gep(x_start, part) if part else x_start
            pointers = _VectorOfPointers(builder.block, x_start.type.pointee, first, columns)
            builder._insert(pointers)
            vector = ir.VectorType(first.type.pointee, WARP)
            vectors.append(
                _call(builder, "llvm.masked.gather", vector, [pointers, _I32(1), _bits(builder, args[4]), vector(None)],
                      f"v{WARP}{_letters(vector)}.v{WARP}p0")
            )  # fmt: skip
        return cgutils.pack_struct(builder, vectors)

    return lanes(x, types.intp, offsets, types.intp, types.uint32), codegen


@intrinsic
def place(typingctx, source, start, offsets, mask, padding, base, out, at, width):
    """``out[at + l] = number - base``, number ``source[start + offsets[l]]`` in the lanes of `mask`, else `padding`; integers.

    l goes up to the length of the tuple `width`. `offsets` is a pointer to :func:`scratch`; the difference must fit `out`.
    """

    def codegen(context, builder, signature, args):
        source_array, start, offsets, mask, padding, base, out_array, at, _ = args
        first = _pointer(context, builder, source, source_array, start)
        pointers = _VectorOfPointers(builder.block, first.type.pointee, first, _load_vector(builder, offsets, WARP))
        builder._insert(pointers)
        vector = ir.VectorType(first.type.pointee, WARP)
        padding, base = (
            _splat(builder, builder.trunc(n, vector.element) if vector.element.width < 64 else n) for n in (padding, base)
        )
        numbers = _call(
            builder, "llvm.masked.gather", vector, [pointers, _I32(1), _bits(builder, mask), padding],
            f"v{WARP}{_letters(vector)}.v{WARP}p0",
        )  # fmt: skip
        numbers = builder.sub(numbers, base)
        to = _pointer(context, builder, out, out_array, at)
        narrow = ir.VectorType(to.type.pointee, WARP)
        numbers = builder.trunc(numbers, narrow) if narrow.element.width < vector.element.width else numbers
        _store_parts(builder, [_shuffle(builder, numbers, numbers, range(len(width)))], to)
        return context.get_dummy_value()

    return types.none(source, types.intp, offsets, types.uint32, types.intp, types.intp, out, types.intp, width), codegen


@intrinsic
def multiply_add(typingctx, acc, a, b):
    """``acc + a * b``; `a` may be real where the others are complex."""

    def codegen(context, builder, signature, args):
        sums = _multiply_add(builder, *(cgutils.unpack_tuple(builder, arg) for arg in args))
        return cgutils.pack_struct(builder, sums)

    return acc(acc, a, b), codegen


@intrinsic
def multiply_add_blocks(typingctx, acc, data, slot, x, start, col, at, phase, within):
    """``acc + sum over j of data[slot + 32 j + l] * x[start + size * col[at + l] + j]``: a block of 32 rows, whole.

    Lane 0 is row `phase` of its block row; lanes of one block row have the same `col`, so its part of x is loaded once
    and spread over them. `within` is a tuple of `size` integers: its length is known when this is compiled, and with
    it which lanes lie in the same block row.
    """
    size = len(within)

    def codegen(context, builder, signature, args):
        acc_vectors, data_array, slot, x_array, start, col_array, at, phase, _ = args
        x_start = _pointer(context, builder, x, x_array, start)
        first = _pointer(context, builder, col, col_array, at)

        def place(lane):
            return builder.mul(_index(builder, builder.gep(first, [_I32(lane)])), _I64(size))

        values = _pointer(context, builder, data, data_array, slot)
        return _blocks(context, builder, acc_vectors, values, data.dtype, x_start, x.dtype, place, phase, size, None)

    return acc(acc, data, types.intp, x, types.intp, col, types.intp, types.intp, within), codegen


@intrinsic
def multiply_add_blocks_in(typingctx, acc, data, slot, x, start, places, real, present, present_at, phase, within):
    """:func:`multiply_add_blocks` of the lanes in `real`, of those the entries that bits of `present` tell of; all if empty.

    A lane's block begins at ``x[start + places[l]]``, `places` from :func:`scratch`; that of others may too, as it is read.
    """
    size = len(within)

    def codegen(context, builder, signature, args):
        acc_vectors, data_array, slot, x_array, start, first, real, present_array, present_at, phase, _ = args
        x_start = _pointer(context, builder, x, x_array, start)
        some = builder.icmp_signed("!=", context.make_array(present)(context, builder, present_array).nitems, _I64(0))
        stored = []
        with builder.if_else(some) as (holes, whole):
            with holes:
                bits = _load_vector(builder, _pointer(context, builder, present, present_array, present_at), WARP)
                for j in range(size):
                    bit = builder.and_(bits, _splat(builder, bits.type.element(1 << j)))
                    bit = builder.icmp_unsigned("!=", bit, bits.type(None))
                    stored.append([builder.and_(bit, _bits(builder, real))])
                after_holes = builder.block
            with whole:
                all_real = [_bits(builder, real)]
                after_whole = builder.block
        stored = [_phi(builder, (mask, after_holes), (all_real, after_whole))[0] for mask in stored]

        def place(lane):
            return _index(builder, builder.gep(first, [_I32(lane)]))

        values = _pointer(context, builder, data, data_array, slot)
        return _blocks(context, builder, acc_vectors, values, data.dtype, x_start, x.dtype, place, phase, size, stored)

    return (
        acc(acc, data, types.intp, x, types.intp, places, types.uint32, present, types.intp, types.intp, within),
        codegen,
    )


@intrinsic
def clear(typingctx, acc, mask):
    """`acc` with 0 in the lanes of `mask`."""

    def codegen(context, builder, signature, args):
        ended = _bits(builder, args[1])
        vectors = [builder.select(ended, v.type(None), v) for v in cgutils.unpack_tuple(builder, args[0])]
        return cgutils.pack_struct(builder, vectors)

    return acc(acc, types.uint32), codegen


@intrinsic
def scratch(typingctx, like):
    """Pointer to room for 32 numbers of the array's dtype, on the stack of the function that calls."""
    return _room(like.dtype, WARP, like)


@intrinsic
def scratch_rows(typingctx, like, tile):
    """Pointer to room for 32 rows of as many numbers as `tile` is long: see :func:`scratch`."""
    return _room(like.dtype, WARP * len(tile), like, tile)


@intrinsic
def scratch_batch(typingctx, like):
    """Pointer to room for :data:`BATCH` numbers: see :func:`scratch`."""
    return _room(like.dtype, BATCH, like)


def _room(dtype, size, *args):
    """Signature and code of a function of `args` that gives a pointer to room for `size` numbers on the stack."""

    def codegen(context, builder, signature, args):
        return cgutils.alloca_once(builder, context.get_data_type(dtype), size=size)

    return types.CPointer(dtype)(*args), codegen


@intrinsic
def pointer(typingctx, array, at):
    """Pointer to element `at` of a contiguous array, or that many elements on from a pointer.

    Unlike an array's, its indices never count from the end: loops over it compile to plain or vector instructions.
    """
    result = types.CPointer(array.dtype)

    def codegen(context, builder, signature, args):
        return _pointer(context, builder, array, *args)

    return result(array, types.intp), codegen


@intrinsic
def store(typingctx, acc, out, at):
    """``out[at : at + n] = acc``, n numbers; `out` is a contiguous array or a pointer to :func:`scratch`."""

    def codegen(context, builder, signature, args):
        _store_parts(builder, cgutils.unpack_tuple(builder, args[0]), _pointer(context, builder, out, args[1], args[2]))
        return context.get_dummy_value()

    return types.none(acc, out, types.intp), codegen


@intrinsic
def store_first(typingctx, acc, out, at, width):
    """:func:`store` of as many lanes as the tuple `width` is long."""

    def codegen(context, builder, signature, args):
        vectors = [_shuffle(builder, v, v, range(len(width))) for v in cgutils.unpack_tuple(builder, args[0])]
        _store_parts(builder, vectors, _pointer(context, builder, out, args[1], args[2]))
        return context.get_dummy_value()

    return types.none(acc, out, types.intp, width), codegen


@intrinsic
def compress(typingctx, acc, mask, out, at):
    """Write the numbers of the lanes in `mask` side by side from ``out[at]`` on; returns `at` for the next.

    `out` is a pointer. What follows them there, up to ``out[at + 31]``, may be overwritten.
    """

    def codegen(context, builder, signature, args):
        vectors, mask, out, at = args
        vectors = cgutils.unpack_tuple(builder, vectors)
        n = min(LINE // context.get_abi_sizeof(vectors[0].type.element), 16)  # one register of AVX-512
        bits = ir.IntType(n)
        for lane in range(0, WARP, n):
            chosen = builder.trunc(builder.lshr(mask, _I32(lane)), bits)
            chosen_lanes = builder.bitcast(chosen, ir.VectorType(_I1, n))
            pieces = [_shuffle(builder, vector, vector, range(lane, lane + n)) for vector in vectors]
            pieces = [
                _call(builder, "llvm.experimental.vector.compress", piece.type, [piece, chosen_lanes, piece.type(ir.Undefined)],
                      f"v{n}{_letters(piece.type)}")
                for piece in pieces
            ]  # fmt: skip
            _store_parts(builder, pieces, builder.gep(out, [at]))
            at = builder.add(at, builder.zext(builder.ctpop(chosen), _I64))
        return at

    return types.intp(acc, types.uint32, out, types.intp), codegen


@intrinsic
def add_each(typingctx, terms, out, offsets, at, width):
    """``out[offsets[at + l]] += terms[l]``, lane after lane, as many as the tuple `width` is long; `out` is a pointer."""

    def codegen(context, builder, signature, args):
        dtype = terms.dtype
        first = _pointer(context, builder, offsets, args[2], args[3])
        # From the stack single numbers are cheaper to load than to take out of vectors.
        room = cgutils.alloca_once(builder, context.get_data_type(dtype), size=WARP)
        _store_parts(builder, cgutils.unpack_tuple(builder, args[0]), room)
        for lane in range(len(width)):
            to = builder.gep(args[1], [_index(builder, builder.gep(first, [_I32(lane)]))])
            numbers = _load_parts(builder, dtype, to, 1), _load_parts(builder, dtype, builder.gep(room, [_I32(lane)]), 1)
            _store_parts(builder, _add(builder, *numbers), to)
        return context.get_dummy_value()

    return types.none(terms, out, offsets, types.intp, width), codegen


def far(values):
    """For :func:`prefetch`: a tuple of length 1 where tables with these values are best asked into L2, else 0.

    They are where 8-byte values come from beyond it. A tuple's length is known when a kernel is compiled.
    """
    return INTO_L2 if values.itemsize >= 8 and values.nbytes > L2 else ()


@intrinsic
def prefetch(typingctx, array, at, far):
    """Ask for the cache lines of ``array[at : at + 32]``, which need not exist.

    Into L1; where `far` says so into L2, but for narrow columns: on the way to L1, streams of 8-byte values would take the
    place of x, and of its misses.
    """
    level = 2 if len(far) and array.dtype != types.uint16 else 3

    def codegen(context, builder, signature, args):
        first = _pointer(context, builder, array, args[0], args[1])
        per_line = max(LINE // context.get_abi_sizeof(first.type.pointee), 1)
        for lane in range(0, WARP, per_line):
            line = builder.bitcast(builder.gep(first, [_I32(lane)]), _I8.as_pointer())
            _call(builder, "llvm.prefetch", ir.VoidType(), [line, _I32(0), _I32(level), _I32(1)], "p0")  # 0: read, 1: data
        return context.get_dummy_value()

    return types.none(array, types.intp, far), codegen


@intrinsic
def highest(typingctx, mask):
    """The highest lane of a mask that is not 0."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.sub(_I32(31), builder.ctlz(args[0], cgutils.true_bit)), _I64)

    return types.intp(types.uint32), codegen


@intrinsic
def lowest(typingctx, mask):
    """The lowest lane of a mask that is not 0."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.cttz(args[0], cgutils.true_bit), _I64)

    return types.intp(types.uint32), codegen


@intrinsic
def different(typingctx, array, at, value):
    """Mask of the lanes where ``array[at + l] != value``."""

    def codegen(context, builder, signature, args):
        numbers = _load_vector(builder, _pointer(context, builder, array, args[0], args[1]), WARP)
        value = builder.trunc(args[2], numbers.type.element) if numbers.type.element.width < 64 else args[2]
        return builder.bitcast(builder.icmp_unsigned("!=", numbers, _splat(builder, value)), _I32)

    return types.uint32(array, types.intp, types.intp), codegen


@intrinsic
def bit_set(typingctx, array, at, bit):
    """Mask of the lanes where ``array[at + l]`` has `bit` set."""

    def codegen(context, builder, signature, args):
        numbers = _load_vector(builder, _pointer(context, builder, array, args[0], args[1]), WARP)
        element = numbers.type.element
        bit = builder.shl(element(1), builder.trunc(args[2], element))
        chosen = builder.and_(numbers, _splat(builder, bit))
        return builder.bitcast(builder.icmp_unsigned("!=", chosen, numbers.type(None)), _I32)

    return types.uint32(array, types.intp, types.intp), codegen


@intrinsic
def advance(typingctx, numbers, mask):
    """``numbers[l] += 1`` in the lanes of `mask`; `numbers` is from :func:`scratch`."""

    def codegen(context, builder, signature, args):
        before = _load_vector(builder, args[0], WARP)
        after = builder.add(before, builder.zext(_bits(builder, args[1]), before.type))
        builder.store(after, builder.bitcast(args[0], after.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(numbers, types.uint32), codegen


@intrinsic
def scale(typingctx, array, at, factor, mask, out):
    """``out[l] = array[at + l] * factor`` in the lanes of `mask`, 0 in others; integers, `out` from :func:`scratch`."""

    def codegen(context, builder, signature, args):
        numbers = _load_vector(builder, _pointer(context, builder, array, args[0], args[1]), WARP)
        factor, mask, start = args[2:]
        wide = ir.VectorType(start.type.pointee, WARP)
        numbers = builder.zext(numbers, wide) if numbers.type != wide else numbers
        factor = builder.trunc(factor, wide.element) if wide.element.width < 64 else factor
        scaled = builder.select(_bits(builder, mask), builder.mul(numbers, _splat(builder, factor)), wide(None))
        builder.store(scaled, builder.bitcast(start, wide.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, types.uint32, out), codegen


def _blocks(context, builder, acc, values, value_dtype, x_start, dtype, place, phase, size, stored):
    """Sums plus a block of 32 rows: see :func:`multiply_add_blocks`. ``place(lane)`` is its offset in x; entries of the block's
    column j outside the mask ``stored[j]`` count as 0."""
    parts = len(_parts(dtype))
    stride = 1 << (size * parts - 1).bit_length()

    def one_block_each(phase):
        """The sums when lane 0 is row `phase` of its block row."""
        block_row = [(lane + phase) // size for lane in range(WARP)]
        blocks = [
            _load_padded(builder, x_start, place(lane), size * parts, stride)
            for lane in map(block_row.index, range(block_row[-1] + 1))
        ]
        blocks += [blocks[-1]] * (-len(blocks) % (1 << (len(blocks) - 1).bit_length()))
        entries = _join(builder, blocks)
        sums = cgutils.unpack_tuple(builder, acc)
        for j in range(size):
            spread = [
                _shuffle(builder, entries, entries, [b * stride + j * parts + part for b in block_row]) for part in range(parts)
            ]
            if stored is not None:
                spread = [builder.select(stored[j], vector, vector.type(None)) for vector in spread]
            loaded = _load_values(context, builder, value_dtype, builder.gep(values, [_I64(WARP * j)]), _real(dtype))
            sums = _multiply_add(builder, sums, loaded, spread)
        return sums

    after = builder.append_basic_block("after")
    outcomes = []
    with builder.goto_block(builder.append_basic_block("impossible")):
        impossible = builder.block
        builder.unreachable()
    switch = builder.switch(phase, impossible)
    for lane_0 in range(0, size, math.gcd(size, WARP)) if size in BLOCK_SIZES else ():
        case = builder.append_basic_block(f"phase.{lane_0}")
        switch.add_case(_I64(lane_0), case)
        builder.position_at_end(case)
        outcomes.append((one_block_each(lane_0), builder.block))
        builder.branch(after)
    builder.position_at_end(after)
    return cgutils.pack_struct(builder, _phi(builder, *outcomes)) if outcomes else acc


def _real(dtype):
    """The type of a complex number's parts; any other type itself."""
    return getattr(dtype, "underlying_float", dtype)


def _parts(dtype):
    """The ``getelementptr`` indices that lead from a number to its parts."""
    return [[_I32(0), _I32(0)], [_I32(0), _I32(1)]] if isinstance(dtype, types.Complex) else [[]]


def _pointer(context, builder, array_type, array, at):
    """To element `at` of a contiguous array, or of what a pointer points to."""
    if isinstance(array_type, types.Array):
        array = context.make_array(array_type)(context, builder, array).data
    return builder.gep(array, [at])


def _load_vector(builder, start, n):
    vector = ir.VectorType(start.type.pointee, n)
    return builder.load(builder.bitcast(start, vector.as_pointer()), align=1)


def _load_parts(builder, dtype, start, n):
    """n consecutive numbers: a list of one vector, or of two for complex numbers."""
    if isinstance(dtype, types.Record):  # float16: see memory.values
        start = builder.bitcast(start, ir.HalfType().as_pointer())
    if not isinstance(dtype, types.Complex):
        return [_load_vector(builder, start, n)]
    both = _load_vector(builder, builder.gep(start, [_I32(0), _I32(0)]), 2 * n)
    return [_shuffle(builder, both, both, range(part, 2 * n, 2)) for part in (0, 1)]


def _store_parts(builder, vectors, start):
    """What :func:`_load_parts` loads, the other way round."""
    if len(vectors) == 2:
        n = vectors[0].type.count
        vectors = [_shuffle(builder, *vectors, [part * n + lane for lane in range(n) for part in (0, 1)])]
    builder.store(vectors[0], builder.bitcast(start, vectors[0].type.as_pointer()), align=1)


def _load_values(context, builder, dtype, start, real, n=WARP):
    """n consecutive numbers, or their parts, as the type `real`."""
    vectors = _load_parts(builder, dtype, start, n)
    return [_convert(context, builder, vector, _real(dtype), real) for vector in vectors]


def _load_padded(builder, start, offset, n, length):
    """Vector of `length` whose first n are the n real numbers from ``start[offset]`` on."""
    start = builder.gep(start, [offset])
    if isinstance(start.type.pointee, ir.LiteralStructType):
        start = builder.gep(start, [_I32(0), _I32(0)])
    vector = _load_vector(builder, start, n)
    return _shuffle(builder, vector, vector, [min(k, n - 1) for k in range(length)])


def _add(builder, a, b):
    """``a + b``, lists of a vector a part."""
    add = builder.add if isinstance(a[0].type.element, ir.IntType) else builder.fadd
    return [add(*vectors) for vectors in zip(a, b, strict=True)]


def _multiply_add(builder, sums, a, b):
    """``sums + a * b``, lists of a vector a part."""
    if len(sums) == 1:
        return [_fused(builder, a[0], b[0], sums[0])]
    sums = [_fused(builder, a[0], b[part], sums[part]) for part in (0, 1)]
    if len(a) == 2:
        sums[0] = _fused(builder, builder.fneg(a[1]), b[1], sums[0])
        sums[1] = _fused(builder, a[1], b[0], sums[1])
    return sums


def _insert_each(builder, dtype, x_start, first_offset, lanes):
    """The numbers at the offsets of `lanes` from `x_start`, loaded one by one: a list as from :func:`_load_parts`.

    Vectors have a power of two of elements, the last of them undefined where `lanes` are fewer.
    """
    offsets = [_index(builder, builder.gep(first_offset, [_I32(lane)])) for lane in lanes]
    places = [builder.gep(x_start, [offset]) for offset in offsets]
    vectors = []
    for part in _parts(dtype):
        numbers = [builder.load(builder.gep(place, part) if part else place) for place in places]
        vector = ir.VectorType(numbers[0].type, 1 << (len(numbers) - 1).bit_length())(ir.Undefined)
        for lane, number in enumerate(numbers):
            vector = builder.insert_element(vector, number, _I32(lane))
        vectors.append(vector)
    return vectors


def _hidden(builder, pointer):
    """The pointer, so that LLVM loads from it what a vector already has: taking single offsets out of one is slower."""
    return builder.asm(ir.FunctionType(pointer.type, [pointer.type]), "", "=r,0", [pointer], False)


def _fence(builder, vector):
    """The vector as it is, in registers: LLVM puts several single numbers together anew where it is shuffled."""
    if isinstance(vector.type.element, ir.IntType):
        return vector
    return _call(builder, "llvm.arithmetic.fence", vector.type, [vector], f"v{vector.type.count}{_letters(vector.type)}")


def _in_runs(builder, first_offset):
    """Mask of the lanes whose offset is that of the first of their 8 lanes, plus the lanes between."""
    offsets = _load_vector(builder, first_offset, WARP)
    steps = builder.sub(offsets, offsets.type([lane % RUN for lane in range(WARP)]))
    firsts = _shuffle(builder, offsets, offsets, [lane - lane % RUN for lane in range(WARP)])
    return builder.bitcast(builder.icmp_unsigned("==", steps, firsts), _I32)


def _phi(builder, *incoming):
    """The vectors of the block that control came from; `incoming` are pairs of a list of vectors and a block."""
    phis = [builder.phi(vector.type) for vector in incoming[0][0]]
    for vectors, block in incoming:
        for phi, vector in zip(phis, vectors, strict=True):
            phi.add_incoming(vector, block)
    return phis


def _join(builder, vectors):
    """Vectors of one length, a power of two of them, end to end."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_shuffle(builder, a, b, range(2 * a.type.count)) for a, b in pairs]
    return vectors[0]


def _index(builder, pointer):
    """A column (never negative) as a 64-bit integer."""
    value = builder.load(pointer)
    return value if value.type.width == 64 else builder.zext(value, _I64)


def _bits(builder, mask):
    return builder.bitcast(mask, ir.VectorType(_I1, WARP))


def _padded(builder, vector):
    """The vector, and zeros up to 32 lanes."""
    n = vector.type.count
    return vector if n == WARP else _shuffle(builder, vector, vector.type(None), [min(lane, n) for lane in range(WARP)])


def _shuffle(builder, a, b, order):
    order = list(order)
    return builder.shuffle_vector(a, b, ir.VectorType(_I32, len(order))(order))


def _splat(builder, value, n=WARP):
    one = builder.insert_element(ir.VectorType(value.type, n)(ir.Undefined), value, _I32(0))
    return _shuffle(builder, one, one, [0] * n)


def _convert(context, builder, vector, source, dtype):
    """Numbers of a real type in another that holds them all; a bool is 0 or 1."""
    target = ir.VectorType(context.get_value_type(dtype), vector.type.count)
    if vector.type == target:
        return vector
    if isinstance(source, types.Record):  # from half to double in two steps: both are exact, and machines have only those
        vector = builder.fpext(vector, ir.VectorType(ir.FloatType(), vector.type.count))
        source = types.float32
        if vector.type == target:
            return vector
    if isinstance(source, types.Float):
        return builder.fpext(vector, target)
    signed = getattr(source, "signed", False)
    if isinstance(dtype, types.Float):
        return builder.sitofp(vector, target) if signed else builder.uitofp(vector, target)
    return builder.sext(vector, target) if signed else builder.zext(vector, target)


def _fused(builder, a, b, c):
    """a * b + c, rounded once where the machine can."""
    if isinstance(a.type.element, ir.IntType):
        return builder.add(builder.mul(a, b), c)
    return _call(builder, "llvm.fmuladd", a.type, [a, b, c], f"v{a.type.count}{_letters(a.type)}")


def _call(builder, intrinsic, returns, args, overload):
    signature = ir.FunctionType(returns, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, f"{intrinsic}.{overload}"), args)


def _letters(vector):
    """``f32`` for a vector of float, as names of LLVM's intrinsics have it."""
    element = vector.element
    return f"i{element.width}" if isinstance(element, ir.IntType) else {"float": "f32", "double": "f64"}[str(element)]


class _VectorOfPointers(ir.instructions.Instruction):
    """``getelementptr`` with a vector of offsets, which llvmlite's builder does not make."""

    def __init__(self, block, element, start, offsets):
        super().__init__(block, ir.VectorType(ir.PointerType(), WARP), "getelementptr", [start, offsets])
        self.element = element

    def descr(self, buf):
        start, offsets = self.operands
        buf.append(
            f"getelementptr {self.element}, {start.type} {start.get_reference()}, {offsets.type} {offsets.get_reference()}\n"
        )
