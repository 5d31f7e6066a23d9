// y = alpha * A.T @ x + beta * y for BBCSR: see transposed.cuh for how sums come out the same in every run.

#include "values.cuh"
#include "bbcsr.cuh"
#include "transposed.cuh"

// columns of a block whose terms are in shared memory at a time
__device__ constexpr int together(int block_size) { return block_size < 8 ? block_size : 8; }

// The blocks `begin` to `end` of a bin's rows, whose tables begin at `col`, `data` and `present`. Rows of a block row
// meet in the same columns: their terms go through shared memory, JB columns of every block at a time, and one lane
// adds those of one column, row by row.
//
// requires  blocks of a row before its padding (invariant 3); padding and holes are never multiplied
template <class A, class Y, class I, class M, int B, bool HOLES, int U, class C, class ADDER>
__device__ void scatter_blocks(const C* col, const Opened<A>& data, const M* present, int begin, int end, I base, int64 bin, Y x,
                               const ADDER& adder, Y (*terms)[WARP]) {
    constexpr int JB = together(B);
    const int lane = lane_id();
    // the bin's first block row begins `before` rows above the bin
    const int before = (int)(bin * WARP % B), n_groups = (before + WARP + B - 1) / B;
    for (int block = begin; block < end; block += U) {
        C c[U];
        M bits[U];
        Stored<A> v[U][B];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = block + u < end;
            c[u] = here ? stream(col + (int64)(block + u) * WARP) : C(-1);
            if (HOLES) bits[u] = here ? stream(present + (int64)(block + u) * WARP) : M(0);
#pragma unroll
            for (int j = 0; j < B; ++j)
                v[u][j] = here ? stream(data.slot + ((int64)(block + u) * B + j) * WARP) : Stored<A>{};
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = !is_padding<I>(c[u], 0);
            auto entry = [&](int j) { return here && (!HOLES || (bits[u] >> j & 1)); };
            auto term = [&](int j) { return entry(j) ? mac(data.template decoded<Y>(v[u][j]), x, Y{}) : Y{}; };
            if constexpr (B == 1 || ADDER::PASS == COUNT) {
#pragma unroll
                for (int j = 0; j < B; ++j) adder.put(entry(j), ((int64)base + c[u]) * B + j, term(j));
            } else
#pragma unroll
                for (int first = 0; first < B; first += JB) {
                    __syncwarp();
#pragma unroll
                    for (int j = 0; j < JB; ++j)
                        if (first + j < B) terms[j][lane] = term(first + j);
                    __syncwarp();
                    for (int i = 0; i < n_groups * JB; i += WARP) {
                        const int group = (i + lane) / JB, j = (i + lane) % JB, top = group * B - before;
                        const int from = min(max(top, 0), WARP - 1), to = min(top + B, WARP);
                        const C of_group = (C)__shfl_sync(FULL, c[u], from);
                        Y sum{};
                        for (int r = from; r < to; ++r) sum = add(sum, terms[j][r]);
                        const bool mine = group < n_groups && first + j < B && !is_padding<I>(of_group, 0);
                        adder.put(mine, ((int64)base + of_group) * B + first + j, sum);
                    }
                }
        }
    }
}

template <class A, class Y, class I, class M, int B, bool HOLES, class C, class ADDER>
__device__ void scatter_bin(const Bbcsr<A, I, M>& m, const Opened<A>& values, const C* col, I base, int64 first, int n_blocks,
                            int64 bin, Y x, const ADDER& adder, Y (*terms)[WARP]) {
    constexpr int PASS = ADDER::PASS, U = B == 1 ? 4 : 1;
    const Opened<A> data = values + first + lane_id();
    const M* present = HOLES ? m.present + first / B + lane_id() : nullptr;
    col += lane_id();
    if constexpr (PASS == EXPONENT || PASS == REFINE) {  // most bins have no coarse column
        bool any = false;
        for (int block = 0; block < n_blocks; ++block) {
            const C stored = col[(int64)block * WARP];
            if (!is_padding<I>(stored, 0))
                for (int j = 0; j < B && ((int64)base + stored) * B + j < m.n_cols; ++j)
                    any |= adder.is_coarse(((int64)base + stored) * B + j);
        }
        if (!__any_sync(FULL, any)) return;
    }
    // Where columns are far apart, each bin begins in another place of its rows. Else all bins would add to the lowest
    // columns at the same time.
    const bool is_far = sizeof(C) > 2 && Real<typename Components<Y>::Part>::LIMBS == 1 && n_blocks > U;
    const int middle = is_far ? (int)(bin * 7919 % (n_blocks / U)) * U : 0;
#pragma unroll 1
    for (int begin = middle, end = n_blocks; begin < end; end = begin ? middle : 0, begin = 0)
        scatter_blocks<A, Y, I, M, B, HOLES, U>(col, data, present, begin, end, base, bin, x, adder, terms);
}

// all bins, by a grid whose warps stride over them
template <class A, class Y, class I, class M, int B, bool HOLES>
struct Bins {
    const Bbcsr<A, I, M>& m;
    const Opened<A>& values;
    const Y* x;
    Y (*terms)[WARP];  // the warp's own, in shared memory

    template <class ADDER>
    __device__ void scatter(const ADDER& adder) const {
        const int64 n_warps = gridDim.x * (int64)blockDim.x / WARP;
        for (int64 bin = warp_id(); bin < m.n_bins; bin += n_warps) {
            const int64 row = bin * WARP + lane_id();
            const int64 first = m.bin_rowptr[bin], start = m.col_ptr[bin];
            const int n_blocks = (int)((m.bin_rowptr[bin + 1] - first) / (WARP * B));
            const I base = m.col_base[bin];
            const Y own = ADDER::PASS != COUNT && row < m.n_rows ? stream(x + row) : Y{};
            if (base >= 0)
                scatter_bin<A, Y, I, M, B, HOLES>(m, values, m.col_narrow + start, base, first, n_blocks, bin, own, adder, terms);
            else
                scatter_bin<A, Y, I, M, B, HOLES>(m, values, m.col_wide + start, I(0), first, n_blocks, bin, own, adder, terms);
        }
    }
};

// bbcsr_transposed: the pass COUNT or ADD over all bins
//
// mapping   one warp a bin, one thread a row
// traffic   slot: sizeof(A) + (2 or sizeof(I)) / B bytes, with holes sizeof(M) / B more, and 8 LIMBS / B added to a
//           column
// races     integer atomics, whose order does not show
template <class A, class Y, class I, class M, int B, bool HOLES, int PASS, int WARPS, bool FLOATS>
__global__ void bbcsr_transposed(const Bbcsr<A, I, M> m, const Y* __restrict__ x, ColumnSums<Y, FLOATS> sums) {
    __shared__ Y terms[WARPS][B == 1 || PASS == COUNT ? 1 : together(B)][WARP];
    Bins<A, Y, I, M, B, HOLES>{m, m.data.opened(), x, terms[threadIdx.x / WARP]}.scatter(Adder<Y, FLOATS, PASS>(sums));
}

// bbcsr_segments: from which step to before which each bin has columns of each segment, that is `width` columns
//
// mapping   one warp a bin, one thread a row, which looks for the segments' ends in its ascending columns
// requires  blocks of 1
template <class A, class I, class M>
__global__ void bbcsr_segments(const Bbcsr<A, I, M> m, int64 width, int n_segments, int2* steps) {
    const int64 bin = warp_id();
    if (bin >= m.n_bins) return;
    const int64 start = m.col_ptr[bin];
    const int n_steps = (int)((m.bin_rowptr[bin + 1] - m.bin_rowptr[bin]) / WARP);
    const I base = m.col_base[bin];
    // the first step whose column is beyond `end`, or padding
    auto before = [&](int64 end) {
        int low = 0, high = n_steps;
        while (low < high) {
            const int middle = (low + high) / 2;
            const int64 at = start + (int64)middle * WARP + lane_id();
            const bool is_below = base >= 0 ? !is_padding<I>(m.col_narrow[at], 0) && (int64)base + m.col_narrow[at] < end
                                            : !is_padding<I>(m.col_wide[at], 0) && m.col_wide[at] < end;
            if (is_below)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    };
    int begin = 0;
    for (int k = 0; k < n_segments; ++k) {
        const int end = before((k + 1) * width);
        const uint32 last = warp_max((uint32)(begin < end ? end : 0));
        const uint32 first = last - warp_max(begin < end ? last - (uint32)begin : 0);
        if (lane_id() == 0) steps[bin * n_segments + k] = make_int2((int)first, (int)last);
        begin = end;
    }
}

// one bin's entries in `count` columns: in column k of these, where `base` + k is what is stored
template <class A, class Y, class C, class I, class ADDER>
__device__ void scatter_segment(const C* col, const Opened<A>& data, int2 steps, I base, Y x, int count, const ADDER& adder) {
    constexpr int U = 4;
    for (int step = steps.x; step < steps.y; step += U) {
        I place[U];
        Stored<A> v[U];
        bool here[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const C stored = step + u < steps.y ? stream(col + (int64)(step + u) * WARP) : C(-1);
            place[u] = (I)stored - base;
            here[u] = !is_padding<I>(stored, 0) && place[u] >= 0 && place[u] < count;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) v[u] = here[u] ? stream(data.slot + (int64)(step + u) * WARP) : Stored<A>{};
#pragma unroll
        for (int u = 0; u < U; ++u) adder.put(here[u], place[u], mac(data.template decoded<Y>(v[u]), x, Y{}));
    }
}

// bbcsr_transposed_shared: the pass ADD, with the sums of one segment of columns at a time in shared memory
//
// mapping   one large block a multiprocessor; each has a segment and a group of bins, its warps take one bin after the
//           other. Blocks of one group run side by side, so that what they all read comes from L2
// traffic   slot in `steps` of a segment: (2 or sizeof(I)) + sizeof(A) if its column is there; 8 LIMBS a column and
//           group
// requires  blocks of 1, without holes; `steps` by bbcsr_segments
// races     integer atomics; barriers where shared memory is cleared and read
template <class A, class Y, class I, class M, int THREADS, bool FLOATS>
__global__ __launch_bounds__(THREADS, 1) void bbcsr_transposed_shared(const Bbcsr<A, I, M> m, const Y* __restrict__ x,
                                                                      ColumnSums<Y, FLOATS> sums, const int2* steps,
                                                                      int64 width, int n_segments, int n_groups) {
    extern __shared__ uint32 shared[];
    __shared__ int taken;
    const Opened<A>& values = m.data.opened();
    for (int unit = blockIdx.x; unit < n_segments * n_groups; unit += gridDim.x) {
        const int segment = unit % n_segments, group = unit / n_segments;
        const int64 begin = segment * width, first_bin = m.n_bins * group / n_groups;
        const int count = (int)min(width, m.n_cols - begin);
        const int n_bins = (int)(m.n_bins * (group + 1) / n_groups - first_bin);
        const SharedAdder<Y, FLOATS, I, true> adder(sums, nullptr, count, shared, begin);
        __syncthreads();
        if (threadIdx.x == 0) taken = THREADS / WARP;
        adder.clear();
        for (int mine = threadIdx.x / WARP; mine < n_bins;) {
            const int64 bin = first_bin + mine, row = bin * WARP + lane_id();
            const int2 range = steps[bin * n_segments + segment];
            const int64 start = m.col_ptr[bin];
            const I base = m.col_base[bin];
            const Opened<A> data = values + m.bin_rowptr[bin] + lane_id();
            const Y own = row < m.n_rows ? x[row] : Y{};
            if (base >= 0)
                scatter_segment<A>(m.col_narrow + start + lane_id(), data, range, I(begin - base), own, count, adder);
            else
                scatter_segment<A>(m.col_wide + start + lane_id(), data, range, I(begin), own, count, adder);
            if (lane_id() == 0) mine = atomicAdd(&taken, 1);
            mine = __shfl_sync(FULL, mine, 0);
        }
        adder.flush();
    }
}

// bbcsr_transposed_finish: y, and the coarse columns' sums anew where there are any
//
// mapping   a cooperative grid, whose warps stride over the bins twice, and its threads over the columns
// races     integer atomics; a barrier of the grid between passes
template <class A, class Y, class I, class M, int B, bool HOLES, int WARPS, bool FLOATS>
__global__ void bbcsr_transposed_finish(const Bbcsr<A, I, M> m, const Y* __restrict__ x, ColumnSums<Y, FLOATS> sums,
                                        Y* y, Y alpha, Y beta, int update) {
    __shared__ Y terms[WARPS][B == 1 ? 1 : together(B)][WARP];
    finish(sums, Bins<A, Y, I, M, B, HOLES>{m, m.data.opened(), x, terms[threadIdx.x / WARP]}, m.n_cols, y, alpha, beta, update);
}
