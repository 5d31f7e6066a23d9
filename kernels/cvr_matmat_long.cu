// Y = alpha * A @ X + beta * Y for CVR, rows of A that are long, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for
// the groups. Most steps have no record, and cost no more than their products: a warp knows a window of steps ahead in which
// one of its lanes of the chunk has a record. There are few warps with many registers, so that much of X is under way.

#include "values.cuh"
#include "cvr.cuh"
#include "matrix.cuh"
#include "cvr_matmat.cuh"

// The records of a warp's LANES lanes of a chunk, a window of WARP steps at a time. What the next window's records name is on its
// way, and so is which lanes have one in the window after that: a step each thread.
template <class I, int LANES>
struct Records {
    const uint32* mask_of;  // of the thread's step, in the window that is loaded next
    const I* wb;            // of the first record that is loaded next
    I (*const named)[WARP];  // by the warp's lanes in the window's steps, where they have a record
    const int first, own;   // of the warp's lanes, in the chunk; the thread's, in the warp
    int left;               // steps from mask_of on
    uint32 mask, next_ends, next_any;
    I next[LANES];
    uint32 ends, any;  // in which steps of the window the thread's lane has a record, or any of the warp's

    __device__ Records(const uint32* mask_of, const I* wb, I (*named)[WARP], int first, int own, int n_steps)
        : mask_of(mask_of + lane_id()), wb(wb), named(named), first(first), own(own), left(n_steps - lane_id()) {
        load_mask();
        load();
    }

    // goes on to the next window
    __device__ void advance() {
        ends = next_ends;
        any = next_any;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < LANES; ++i) named[i][lane_id()] = next[i];
        __syncwarp();
        load();
    }

   private:
    __device__ void load_mask() {
        mask = left > 0 ? cached(mask_of) : 0;
        mask_of += WARP;
        left -= WARP;
    }
    __device__ void load() {
        const int upto = records_up_to(mask);
        const I* const of_step = wb + (upto - __popc(mask));
        wb += __shfl_sync(FULL, upto, WARP - 1);
        next_any = 0;
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            const uint32 bit = 1u << (first + i);
            const uint32 of_lane = __ballot_sync(FULL, (mask & bit) != 0);
            next_any |= of_lane;
            if (i == own) next_ends = of_lane;
            if (mask & bit) next[i] = cached(of_step + __popc(mask & (bit - 1)));
        }
        load_mask();
    }
};

// cvr_matmat_long: all chunks
//
// mapping   one thread block a chunk and W * G * V columns (tile_of_block() counts these), one group of G lanes each lane of
//           the chunk, as in cvr_matmat; B blocks a multiprocessor
// traffic   as cvr_matmat
// requires  as cvr_matmat; G >= 2
// races     none: as cvr_matmat. Only its own warp uses what its records name, and a lane's entries only its own group, up to
//           the last barrier
template <class A, class Y, class I, int L, int G, int V, int W, int U, int B, int UPDATE>
__global__ __launch_bounds__(WARP* G, B) void cvr_matmat_long(
    const Cvr<A, I> m, int k, const Y* __restrict__ x, Y* __restrict__ y, const MatrixCuts<Y> cuts, Y alpha, Y beta) {
    constexpr int LANES = WARP / G, TILE = W * G * V;
    typedef Columns<Y, V, W, G * V> Part;
    const Opened<A>& values = m.val.opened();
    const int slot = threadIdx.x / G, member = threadIdx.x % G, warp = threadIdx.x / WARP;
    const int at = (int)min(tile_of_block() * TILE + member * V, (int64)k);
    const uint32 pitch = (uint32)k * sizeof(Y);
#pragma unroll 1
    for (int64 i = blockIdx.x * (int64)WARP + slot; i < m.n_empty; i += gridDim.x * (int64)WARP)
        Part{}.store(y + (int64)m.empty_row[i] * k + at, at, k, alpha, beta, UPDATE);
    __shared__ alignas(16) Y entries[2][WARP][TILE];  // what a lane adds to its own entry of tail, and to another's,
    __shared__ int taken_from[WARP];                  // and whose; -1: nothing
    __shared__ I named[G][LANES][WARP];
    if (blockIdx.x >= m.n_chunks) return;

    const int64 chunk = blockIdx.x, first = m.step_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const bool active = L == WARP || slot < L;
    const int own = active ? slot : 0;
    const I base = m.col_base[chunk];
    const bool is_narrow = base >= 0;
    const int64 first_col = m.col_ptr[chunk] + own;
    const void* col = is_narrow ? (const void*)(m.col_narrow + first_col) : (const void*)(m.col_wide + first_col);
    const Stored<A>* val = values.slot + (first * L + own);
    if (is_narrow) x = row_at(x, base, pitch);
    x += at < k ? at : 0;  // lanes beyond the last column compute too
    y += at;
    I c[U] = {};  // valid ones, also after the last step
    NextColumns<I, L, true, U> next = {c, col, is_narrow};
    next.load(n_steps);
    Records<I, LANES> records(m.rec_mask + first, m.rec_wb + m.rec_ptr[chunk], named[warp], warp * LANES, slot % LANES, n_steps);
    const I before = cuts.span ? m.carry_row[chunk] : I(-1);
    const I after = cuts.span && chunk + 1 < m.n_chunks ? m.carry_row[chunk + 1] : I(-1);
    const I tail = active ? m.tail[chunk * L + slot] : I(-1);
    Y* const entry = entries[0][slot] + member * V;
    Part sum = {};
    sum.store(entry, at, k, alpha, beta, PLAIN);
    if (member == 0) taken_from[slot] = -1;

    Stored<A> v[U] = {};
#pragma unroll 1
    for (int begin = 0; begin < n_steps; begin += U) {
        Part of_x[U];
#pragma unroll
        for (int u = 0; u < U; ++u) of_x[u].template load<true>(row_at(x, c[u], pitch), at, k);
        next.load(n_steps - begin - U);  // ahead, so that the next rows of X do not wait for them
        load_steps<L, true>(v, val, n_steps - begin);
        val += U * L;
        const int step = begin % WARP;
        if (step == 0) records.advance();
        const uint32 any = records.any >> step & (uint32)((1ull << U) - 1), ends = records.ends >> step;
        if (!any) {
#pragma unroll
            for (int u = 0; u < U; ++u) sum.add_product(values.template decoded<Y>(v[u]), of_x[u]);
            continue;
        }
        I row[U];
#pragma unroll
        for (int u = 0; u < U; ++u) row[u] = named[warp][slot % LANES][step + u];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            sum.add_product(values.template decoded<Y>(v[u]), of_x[u]);
            if (!(any >> u & 1)) continue;
            const bool ends_here = ends >> u & 1;
            if (ends_here) {
                if (row[u] >= 0 && row[u] != before) {
                    sum.store(row_at(y, row[u], pitch), at, k, alpha, beta, UPDATE);
                } else if (row[u] >= 0) {
                    sum.store(row_at(cuts.part + at, 2 * chunk, pitch), at, k, alpha, beta, PLAIN);
                } else {
                    const bool takes = ~row[u] != slot;
                    if (takes && member == 0) taken_from[slot] = (int)~row[u];
                    sum.store(entry + (takes ? WARP * TILE : 0), at, k, alpha, beta, PLAIN);
                }
            }
            sum.clear_if(ends_here);
        }
    }
    __syncthreads();
    if (tail >= 0) sum.load(entry, at, k);
    finish<UPDATE, TILE, WARP>(sum, takers<G>(taken_from), entries[1][0] + member * V, tail, cuts, m, chunk, before, after, slot,
                               y, k, at, alpha, beta, entry, taken_from);
}
