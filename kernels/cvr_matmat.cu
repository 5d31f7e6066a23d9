// Y = alpha * A @ X + beta * Y for CVR, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for the groups.

#include "values.cuh"
#include "cvr.cuh"
#include "matrix.cuh"
#include "cvr_matmat.cuh"

// Which sums end in the next WARP * G steps of a chunk, as the groups of its thread block need it: each warp reads 32
// steps.
template <int G>
struct Records {
    struct alignas(8) Step {
        uint32 mask;  // its lanes with a record
        int before;   // records of the warp's steps before

        // the number of a lane's record, among those of the warp's steps
        __device__ int number(uint32 lane_bit) const { return before + __popc(mask & (lane_bit - 1)); }
    };
    alignas(16) Step step[G][WARP];
    int total[G];  // records of the warp's steps

    __device__ void read(const uint32* mask_of, int n_steps) {
        const int warp = threadIdx.x / WARP, lane = lane_id();
        const uint32 mask = (int)threadIdx.x < n_steps ? stream(mask_of + threadIdx.x) : 0;
        const int upto = records_up_to(mask);
        __syncthreads();  // the steps before are done with
        step[warp][lane] = {mask, upto - __popc(mask)};
        if (lane == WARP - 1) total[warp] = upto;
        __syncthreads();
    }
};

// cvr_matmat: all chunks
//
// mapping   one thread block a chunk and W * G * V columns (tile_of_block() counts these), one group of G lanes each lane of
//           the chunk
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes for each W * G * V columns, and a row of X from L1 or L2;
//           row: sizeof(I) + k sizeof(Y)
// requires  every row has one owner (invariant 5), so Y need not be zeroed; pads follow a lane's last record (invariant
//           6), so that what a lane sums up after it does not matter; a lane adds to its own entry of tail, and to that
//           of one other lane, once each; V divides k; U divides WARP; WARP * G threads
// races     none: rows, parts and empty rows have one owner each. What lanes add to another one's entry meets in shared
//           memory, and is added by the entry's group in the order of lanes. The parts of a cut row are added by the
//           last of its chunks to finish, in the order of chunks
template <class A, class Y, class I, int L, int G, int V, int W, int U, int UPDATE>
__device__ void multiply(const Cvr<A, I>& m, const Opened<A>& values, int64 chunk, const Y* x, Y* y, const MatrixCuts<Y>& cuts,
                         int k, int at, Y alpha, Y beta, Records<G>& records, Y (*entries)[WARP][W * G * V], int* taken_from) {
    typedef Columns<Y, V, W, G * V> Part;
    const int slot = threadIdx.x / G, member = threadIdx.x % G;
    const bool active = L == WARP || slot < L;
    const int own = active ? slot : 0;
    const uint32 lane_bit = 1u << slot;
    const uint32 pitch = (uint32)k * sizeof(Y);
    const int64 first = m.step_ptr[chunk], first_col = m.col_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const I base = m.col_base[chunk];
    const bool is_narrow = base >= 0;
    const uint32* mask = m.rec_mask + first;
    const I* wb = m.rec_wb + m.rec_ptr[chunk];
    const I before = cuts.span ? m.carry_row[chunk] : I(-1);
    const Stored<A>* val = values.slot + (first * L + own);
    const void* col = is_narrow ? (const void*)(m.col_narrow + first_col + own) : (const void*)(m.col_wide + first_col + own);
    if (is_narrow) x = row_at(x, base, pitch);
    x += at;
    y += at;
    Y* const entry = entries[0][slot] + member * V;
    constexpr int TAKEN = WARP * W * G * V;  // numbers from a lane's entry to what it adds to another's
    Part{}.store(entry, at, k, alpha, beta, PLAIN);
    if (threadIdx.x < WARP) taken_from[threadIdx.x] = -1;

    I c[U] = {};  // valid ones, also after the last step
    Stored<A> v[U] = {};
    NextColumns<I, L, false, U> next = {c, col, is_narrow};
    // ahead, as nothing else is there to wait with
    const I after = cuts.span && chunk + 1 < m.n_chunks ? m.carry_row[chunk + 1] : I(-1);
    const I tail = active ? m.tail[chunk * L + slot] : I(-1);
    Part sum = {};
    next.load(n_steps);
#pragma unroll 1
    for (int begin = 0; begin < n_steps; begin += U) {
        const int part = begin / WARP % G, left = n_steps - begin;
        Part of_x[U];
#pragma unroll
        for (int u = 0; u < U; ++u) of_x[u].load(row_at(x, c[u], pitch), at, k);
        next.load(left - U);  // ahead, so that the next rows of X do not wait for them
        if (begin % WARP == 0) {
            if (begin) wb += records.total[(part + G - 1) % G];
            if (part == 0) records.read(mask + begin, left);
        }
        load_steps<L, false>(v, val, left);
        val += U * L;
        // Without a branch, on whose other side the first product would already wait for X: so all loads of these steps
        // are under way before it
        bool ends[U];
        I row[U] = {};
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const auto step = records.step[part][begin % WARP + u];
            ends[u] = active && step.mask & lane_bit;
            if (ends[u]) row[u] = cached(wb + step.number(lane_bit));
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            sum.add_product(values.template decoded<Y>(v[u]), of_x[u]);
            if (!ends[u]) continue;
            if (UPDATE != PLAIN && row[u] >= 0 && row[u] != before) {
                sum.store(row_at(y, row[u], pitch), at, k, alpha, beta, UPDATE);
            } else {
                Y* to = row[u] != before ? row_at(y, row[u], pitch) : row_at(cuts.part + at, 2 * chunk, pitch);
                if (row[u] < 0) {
                    const bool takes = ~row[u] != slot;
                    to = entry + (takes ? TAKEN : 0);
                    if (takes && member == 0) taken_from[slot] = (int)~row[u];
                }
                sum.store(to, at, k, alpha, beta, PLAIN);
            }
            sum = {};
        }
    }
    __syncthreads();
    if (tail >= 0) sum.load(entry, at, k);
    finish<UPDATE, W * G * V, WARP>(sum, takers<G>(taken_from), entries[1][0] + member * V, tail, cuts, m, chunk, before, after,
                                    slot, y, k, at, alpha, beta, entry, taken_from);
}

// Thread blocks of G warps for 1024 threads a multiprocessor, as many as every GPU of an architecture holds: half of its
// threads may have 64 registers each.
__device__ constexpr int blocks_at_once(int G) {
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
    return 32 / G;
#else
    return G > 1 ? 32 / G : 16;
#endif
}

template <class A, class Y, class I, int L, int G, int V, int W, int U, int UPDATE>
__global__ __launch_bounds__(WARP* G, blocks_at_once(G)) void cvr_matmat(
    const Cvr<A, I> m, int k, const Y* __restrict__ x, Y* __restrict__ y, const MatrixCuts<Y> cuts, Y alpha, Y beta) {
    const Opened<A>& values = m.val.opened();
    const int at = (int)min((tile_of_block() * (W * G) + threadIdx.x % G) * V, (int64)k);
#pragma unroll 1
    for (int64 i = blockIdx.x * (int64)WARP + threadIdx.x / G; i < m.n_empty; i += gridDim.x * (int64)WARP)
        Columns<Y, V, W, G * V>{}.store(y + (int64)m.empty_row[i] * k + at, at, k, alpha, beta, UPDATE);
    __shared__ Records<G> records;
    __shared__ alignas(16) Y entries[2][WARP][W * G * V];  // what a lane adds to its own entry of tail, and to another's,
    __shared__ int taken_from[WARP];                       // and whose; -1: nothing
    if (blockIdx.x < m.n_chunks)
        multiply<A, Y, I, L, G, V, W, U, UPDATE>(m, values, blockIdx.x, x, y, cuts, k, at, alpha, beta, records, entries, taken_from);
}
