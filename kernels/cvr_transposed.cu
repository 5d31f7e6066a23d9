// y = alpha * A.T @ x + beta * y for CVR: see transposed.cuh for how sums come out the same in every run.

#include "values.cuh"
#include "cvr.cuh"
#include "transposed.cuh"

// One chunk. Its steps are walked backwards, because a slot belongs to the row of the next record in its lane.
//
// requires  pads follow a lane's last record (invariant 6): walked backwards, they come before any record
template <class A, class Y, class I, int L, class C, class ADDER>
__device__ void scatter_chunk(const Cvr<A, I>& m, const Opened<A>& values, int64 chunk, const C* col, I base, const Y* x,
                              const ADDER& adder) {
    constexpr int PASS = ADDER::PASS, U = 4;
    const int lane = lane_id();
    const bool active = L == WARP || lane < L;
    const unsigned below = (1u << lane) - 1;
    const int64 first = m.step_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const int slot = active ? lane : 0;
    const Opened<A> val = values + first * L + slot;
    col += slot;
    const uint32* mask = m.rec_mask + first;
    const I* wb = m.rec_wb + m.rec_ptr[chunk + 1];
    const I tail = active ? m.tail[chunk * L + lane] : I(-1);

    if constexpr (PASS == EXPONENT || PASS == REFINE) {  // most chunks have no coarse column
        bool any = false;
        for (int step = 0; step < n_steps; ++step)
            any |= active && adder.is_coarse((int64)base + col[(int64)step * L]);
        if (!__any_sync(FULL, any)) return;
    }
    Y own{};           // the entry of x of the lane's row
    bool pad = true;
    for (int end = n_steps; end > 0; end -= U) {
        C c[U];
        Stored<A> v[U];
        unsigned records[U];
        I target[U];
        Y xs[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int step = max(end - 1 - u, 0);
            records[u] = end - 1 - u >= 0 ? mask[step] : 0;
            c[u] = stream(col + (int64)step * L);
            v[u] = stream(val.slot + (int64)step * L);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            wb -= __popc(records[u]);
            target[u] = records[u] >> lane & 1 ? wb[__popc(records[u] & below)] : I(0);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const I of_entry = shuffle(tail, target[u] < 0 ? (int)~target[u] : lane);
            const I row = target[u] < 0 ? of_entry : target[u];
            xs[u] = PASS != COUNT && records[u] >> lane & 1 ? cached(x + row) : Y{};
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (records[u] >> lane & 1) {
                own = xs[u];
                pad = false;
            }
            if (end - 1 - u < 0) break;
            adder.put(active && !pad, (int64)base + c[u], mac(val.template decoded<Y>(v[u]), own, Y{}));
        }
    }
}

// all chunks, by a grid whose warps stride over them
template <class A, class Y, class I, int L>
struct Chunks {
    const Cvr<A, I>& m;
    const Opened<A>& values;
    const Y* x;

    template <class ADDER>
    __device__ void scatter(const ADDER& adder) const {
        const int64 n_warps = gridDim.x * (int64)blockDim.x / WARP;
        for (int64 chunk = warp_id(); chunk < m.n_chunks; chunk += n_warps) {
            const I base = m.col_base[chunk];
            const int64 start = m.col_ptr[chunk];
            if (base >= 0)
                scatter_chunk<A, Y, I, L>(m, values, chunk, m.col_narrow + start, base, x, adder);
            else
                scatter_chunk<A, Y, I, L>(m, values, chunk, m.col_wide + start, I(0), x, adder);
        }
    }
};

// cvr_transposed: the pass COUNT or ADD over all chunks
//
// mapping   one warp a chunk, one thread a lane
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes, and 8 LIMBS added to a column; row: sizeof(I) + sizeof(Y)
// races     integer atomics, whose order does not show
template <class A, class Y, class I, int L, int PASS, bool FLOATS>
__global__ void cvr_transposed(const Cvr<A, I> m, const Y* __restrict__ x, ColumnSums<Y, FLOATS> sums) {
    Chunks<A, Y, I, L>{m, m.val.opened(), x}.scatter(Adder<Y, FLOATS, PASS>(sums));
}

// cvr_transposed_shared: the pass ADD, with sums in shared memory: of the popular columns, or WHOLE: of all
//
// mapping   one large block a multiprocessor; each has its share of the chunks, its warps take one after the other
// traffic   as above, but for columns in shared memory, whose 8 LIMBS bytes a block adds once
// requires  WHOLE: n_shared columns in all. Else: all columns wide and packed by cvr_pack_columns
// races     as above; shared memory is cleared before the first barrier and read after the last
template <class A, class Y, class I, int L, int THREADS, bool WHOLE, bool FLOATS>
__global__ __launch_bounds__(THREADS, 1) void cvr_transposed_shared(const Cvr<A, I> m, const Y* __restrict__ x,
                                                                    ColumnSums<Y, FLOATS> sums, const I* popular,
                                                                    int n_shared) {
    extern __shared__ uint32 shared[];
    __shared__ int taken;
    const Opened<A>& values = m.val.opened();
    if (threadIdx.x == 0) taken = THREADS / WARP;
    const SharedAdder<Y, FLOATS, I, WHOLE> adder(sums, popular, n_shared, shared);
    adder.clear();
    const int64 first = m.n_chunks * blockIdx.x / gridDim.x;
    const int count = (int)(m.n_chunks * (blockIdx.x + 1) / gridDim.x - first);
    for (int mine = threadIdx.x / WARP; mine < count;) {
        const int64 chunk = first + mine;
        const I base = m.col_base[chunk];
        if (!WHOLE)
            scatter_chunk<A, Y, I, L>(m, values, chunk, m.col_wide + m.step_ptr[chunk] * L, I(0), x, adder);
        else if (base >= 0)
            scatter_chunk<A, Y, I, L>(m, values, chunk, m.col_narrow + m.col_ptr[chunk], base, x, adder);
        else
            scatter_chunk<A, Y, I, L>(m, values, chunk, m.col_wide + m.col_ptr[chunk], I(0), x, adder);
        if (lane_id() == 0) mine = atomicAdd(&taken, 1);
        mine = __shfl_sync(FULL, mine, 0);
    }
    adder.flush();
}

// cvr_transposed_finish: y, and the coarse columns' sums anew where there are any
//
// mapping   a cooperative grid, whose warps stride over the chunks twice, and its threads over the columns
// races     integer atomics; a barrier of the grid between passes
template <class A, class Y, class I, int L, bool FLOATS>
__global__ void cvr_transposed_finish(const Cvr<A, I> m, const Y* __restrict__ x, ColumnSums<Y, FLOATS> sums, int64 n_cols,
                                      Y* y, Y alpha, Y beta, int update) {
    finish(sums, Chunks<A, Y, I, L>{m, m.val.opened(), x}, n_cols, y, alpha, beta, update);
}
