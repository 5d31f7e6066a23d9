// y = alpha * A @ x + beta * y for CVR.

#include "values.cuh"
#include "cvr.cuh"
#include "cvr_product.cuh"

// cvr_matvec: all chunks
//
// mapping   one warp a chunk, one thread a lane (L lanes; threads beyond them idle); one thread an empty row
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes, and x; row: sizeof(I) + sizeof(Y)
// requires  every row has one owner (invariant 5), so each y is stored once and y need not be zeroed;
//           pads follow a lane's last record (invariant 6), so their products are never stored
// races     none: rows, parts of cut rows and empty rows have one owner each; who adds parts up waits for their marks;
//           parts of a stolen row are added in an order of their own
//
// `n_for_empty` blocks, spread evenly, store empty rows instead, so that these stores overlap with the others' gathers.
// `backwards`: the last chunks come first.
template <class A, class Y, class I, int L, int U, int UPDATE, bool CUT, bool KEEPS>
__global__ void cvr_matvec(const Cvr<A, I> m, const Y* __restrict__ x, Y* y, const Cuts<Y> cuts, int n_for_empty,
                           Scalar<Y> alpha, Scalar<Y> beta, int backwards) {
    const Opened<A>& values = m.val.opened();
    int64 block = backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    if (n_for_empty) {
        const int64 before = block * n_for_empty / gridDim.x;  // of the blocks for empty rows
        if ((block + 1) * n_for_empty / gridDim.x > before) {
            empty_rows(m, before * blockDim.x + threadIdx.x, n_for_empty * (int64)blockDim.x, y, alpha, beta, UPDATE);
            return;
        }
        block -= before;
    }
    const int64 chunk = (block * blockDim.x + threadIdx.x) / WARP;
    if (chunk >= m.n_chunks) return;
    const Chunk<A, Y, I, L, CUT> c(m, cuts, chunk);
    const auto sums = c.base >= 0
        ? chunk_matvec<A, Y, I, L, U, true, UPDATE, CUT, KEEPS>(m, values, c, m.col_narrow + c.col_start,
                                                                GlobalX<Y>{x + c.base}, y, cuts, alpha, beta)
        : chunk_matvec<A, Y, I, L, U, true, UPDATE, CUT, KEEPS>(m, values, c, m.col_wide + c.col_start, GlobalX<Y>{x}, y, cuts,
                                                                alpha, beta);
    c.template finish<Cuts<Y>::AT_ONCE>(sums, y, cuts, alpha, beta, UPDATE);
}

// cvr_matvec_shared: the same, with entries of x in shared memory: the popular ones, or WHOLE: all of them
//
// mapping   one large block a multiprocessor; each has its share of the chunks, its warps take one after the other
// traffic   as above, without the gathers of shared entries from L2; a block loads n_shared of them once
// requires  WHOLE: `packed` is x. Else: all columns wide and packed by cvr_pack_columns, `packed` made by cvr_pack
// races     as above; which warp takes a chunk does not show. Shared memory is written before the barrier and read
//           after it
template <class A, class Y, class I, int L, int U, int UPDATE, int THREADS, bool WHOLE, bool CUT, bool KEEPS>
__global__ __launch_bounds__(THREADS, 1) void cvr_matvec_shared(const Cvr<A, I> m, const Y* __restrict__ x,
                                                                const Y* __restrict__ packed, int n_shared, Y* y,
                                                                const Cuts<Y> cuts, Scalar<Y> alpha, Scalar<Y> beta) {
    extern __shared__ uint4 memory[];
    __shared__ int taken;
    const Opened<A>& values = m.val.opened();
    Y* shared = reinterpret_cast<Y*>(memory);
    if (threadIdx.x == 0) taken = THREADS / WARP;
#pragma unroll 8
    for (int i = threadIdx.x; i < n_shared; i += THREADS) shared[i] = packed[i];
    empty_rows(m, blockIdx.x * (int64)THREADS + threadIdx.x, gridDim.x * (int64)THREADS, y, alpha, beta, UPDATE);
    __syncthreads();
    const int64 first = m.n_chunks * blockIdx.x / gridDim.x;
    const int count = (int)(m.n_chunks * (blockIdx.x + 1) / gridDim.x - first);
    for (int mine = threadIdx.x / WARP; mine < count;) {
        const Chunk<A, Y, I, L, CUT> c(m, cuts, first + mine);
        LaneSums<Y> sums;
        if constexpr (!WHOLE)  // as many steps under way as in hand, U together
            sums = chunk_matvec<A, Y, I, L, (U > 1 ? U / 2 : 1), true, UPDATE, CUT, KEEPS>(
                m, values, c, m.col_wide + c.first * L, PackedX<Y>{x, shared}, y, cuts, alpha, beta);
        else if (c.base >= 0)  // x is there at once: nothing need be under way meanwhile
            sums = chunk_matvec<A, Y, I, L, U, false, UPDATE, CUT, KEEPS>(m, values, c, m.col_narrow + c.col_start,
                                                                          SharedX<Y>{shared + c.base}, y, cuts, alpha, beta);
        else
            sums = chunk_matvec<A, Y, I, L, U, false, UPDATE, CUT, KEEPS>(m, values, c, m.col_wide + c.col_start,
                                                                          SharedX<Y>{shared}, y, cuts, alpha, beta);
        c.template finish<WHOLE ? 1 : Cuts<Y>::AT_ONCE>(sums, y, cuts, alpha, beta, UPDATE);
        if (lane_id() == 0) mine = atomicAdd(&taken, 1);
        mine = __shfl_sync(FULL, mine, 0);
    }
}

// cvr_pack: packed[i] = x[col[i]]
//
// mapping   one thread an entry
// races     none
template <class Y, class I>
__global__ void cvr_pack(const Y* x, const I* col, int n, Y* packed) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) packed[i] = x[col[i]];
}

// The columns of CVR's tables, whatever its values.
template <class I>
struct Columns {
    const int64* step_ptr;
    const I* col_base;
    const int64* col_ptr;
    const uint16* col_narrow;
    const I* col_wide;
    int64 n_chunks, n_lanes;
};

// calls f(slot, column) for every slot of a chunk, the warp's lanes side by side
template <class I, class F>
__device__ void each_column(const Columns<I>& m, int64 chunk, F f) {
    const I base = m.col_base[chunk];
    const int64 start = m.col_ptr[chunk], first = m.step_ptr[chunk] * m.n_lanes, end = m.step_ptr[chunk + 1] * m.n_lanes;
    for (int64 slot = first + lane_id(); slot < end; slot += WARP)
        f(slot, base >= 0 ? (I)(base + m.col_narrow[start + slot - first]) : m.col_wide[start + slot - first]);
}

// cvr_count_columns: hits[col] += 1 for every slot of each `every`-th chunk
//
// mapping   one warp a chunk
// races     integer atomics
template <class I>
__global__ void cvr_count_columns(const Columns<I> m, int64 every, uint32* hits) {
    const int64 chunk = warp_id() * every;
    if (chunk < m.n_chunks) each_column(m, chunk, [&](int64, I col) { atomicAdd(hits + col, 1u); });
}

// cvr_pack_columns: all columns wide, and the place of every popular one instead of its number: ~i where place[col] is
// i + 1
//
// mapping   one warp a chunk
// traffic   2 or sizeof(I), and 2 sizeof(I) a slot
// races     none
template <class I>
__global__ void cvr_pack_columns(const Columns<I> m, const I* place, I* packed) {
    if (warp_id() < m.n_chunks)
        each_column(m, warp_id(), [&](int64 slot, I col) {
            const I at = place[col];
            packed[slot] = at ? ~(at - 1) : col;
        });
}
