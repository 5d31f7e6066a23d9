// Y = alpha * A @ X + beta * Y for CVR, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for the groups.

#include "values.cuh"
#include "cvr.cuh"
#include "matrix.cuh"

// Which sums end in the next WARP * G steps of a chunk, as the groups of its thread block need it: each warp reads 32
// steps.
template <int G>
struct Records {
    uint32 mask[G][WARP];     // a step's lanes with a record
    int before[G][WARP];      // records of the warp's steps before
    uint32 of_lane[G][WARP];  // a lane's steps with a record
    int total[G];             // records of the warp's steps

    __device__ void read(const uint32* mask_of, int n_steps) {
        const int warp = threadIdx.x / WARP, lane = lane_id();
        const uint32 own = (int)threadIdx.x < n_steps ? stream(mask_of + threadIdx.x) : 0;
        int upto = __popc(own);
        for (int apart = 1; apart < WARP; apart *= 2) {
            const int other = __shfl_up_sync(FULL, upto, apart);
            if (lane >= apart) upto += other;
        }
        uint32 steps = 0;
#pragma unroll 1
        for (int i = 0; i < WARP; ++i) {
            const uint32 of = __ballot_sync(FULL, own >> i & 1);
            if (lane == i) steps = of;
        }
        __syncthreads();  // the steps before are done with
        mask[warp][lane] = own;
        before[warp][lane] = upto - __popc(own);
        of_lane[warp][lane] = steps;
        if (lane == WARP - 1) total[warp] = upto;
        __syncthreads();
    }

    // the number of a lane's record after a step
    __device__ int number(int part, int step, int lane) const {
        return before[part][step] + __popc(mask[part][step] & (1u << lane) - 1);
    }
};

// The parts of rows that are cut between chunks, of the columns of one tile.
template <class Y>
struct MatrixCuts {
    // (n_chunks + 1, 2) of the row that begins before a chunk and ends in or after it: the first of its chunks and the
    // one after its last; -1 where there is none. Null where no row is cut
    const int* span;
    uint32* arrived;  // (tiles, n_chunks) at the first of its chunks, how many of a row's have finished; all 0 before and after
    Y* part;          // (2 n_chunks, k) a chunk's part of the row that begins before it, and of the one that goes on after it
};

// the row of X for a column as stored: its address takes one multiplication where columns have at most 32 bits
template <class Y, class C>
__device__ const Y* row_at(const Y* x, C col, uint32 pitch) {
    const char* const from = reinterpret_cast<const char*>(x);
    if constexpr (sizeof(C) > 4) return reinterpret_cast<const Y*>(from + col * pitch);
    return reinterpret_cast<const Y*>(from + (uint64)(uint32)col * pitch);
}

// Counts the block as arrived at the rows that are cut at the chunk's begin and end. Where it is the last one it adds
// their parts: each group of lanes those of every 32nd chunk, then these sums in the order of groups.
template <class Part, int G, class A, class Y, class I>
__device__ void add_parts(const MatrixCuts<Y>& cuts, const Cvr<A, I>& m, int64 chunk, I before, I after, Y* y, int64 k, int64 at,
                          Y alpha, Y beta, int update, Part (*sums)[G], int* is_last) {
    const int slot = threadIdx.x / G, member = threadIdx.x % G;
    __threadfence();
    __syncthreads();  // all parts of the block are there; sums and is_last are free
    if (threadIdx.x < 2) {
        const I row = threadIdx.x ? after : before;
        const int begin = cuts.span[2 * (chunk + threadIdx.x)], others = cuts.span[2 * (chunk + threadIdx.x) + 1] - begin - 1;
        const bool counts = row >= 0 && (threadIdx.x == 0 || begin == chunk);
        is_last[threadIdx.x] = counts && atomicInc(cuts.arrived + blockIdx.y * m.n_chunks + begin, others) == others;
        __threadfence();
    }
    __syncthreads();
    const bool last[2] = {is_last[0] != 0, is_last[1] != 0};
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
        if (!last[which]) continue;
        const int begin = cuts.span[2 * (chunk + which)], end = cuts.span[2 * (chunk + which) + 1];
        Part sum = {};
#pragma unroll 2
        for (int from = begin + slot; from < end; from += WARP) {
            Part part = {};
            part.load(cuts.part + (2 * (int64)from + (from == begin)) * k + at, at, k);
            sum.add(part);
        }
        __syncthreads();
        sums[slot][member] = sum;
        __syncthreads();
        if (slot) continue;
#pragma unroll 1
        for (int i = 1; i < min(end - begin, WARP); ++i) sum.add(sums[i][member]);
        sum.store(y + (int64)(which ? after : before) * k + at, at, k, alpha, beta, update);
    }
}

// cvr_matmat: all chunks
//
// mapping   one thread block a chunk and W * G * V columns (blockIdx.y counts these), one group of G lanes each lane of
//           the chunk
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes for each W * G * V columns, and a row of X from L1 or L2;
//           row: sizeof(I) + k sizeof(Y)
// requires  every row has one owner (invariant 5), so Y need not be zeroed; pads follow a lane's last record (invariant
//           6), so that what a lane sums up after it does not matter; a lane adds to its own entry of tail, and to that
//           of one other lane, once each; V divides k; U divides WARP; WARP * G threads
// races     none: rows, parts and empty rows have one owner each. What lanes add to another one's entry meets in shared
//           memory, and is added by the entry's group in the order of lanes. The parts of a cut row are added by the
//           last of its chunks to finish, in the order of chunks
template <class A, class Y, class I, int L, int G, int V, int W, int U, int UPDATE, class C>
__device__ void multiply(const Cvr<A, I>& m, const Opened<A>& values, int64 chunk, const C* col, const Y* x, Y* y,
                         const MatrixCuts<Y>& cuts, int64 k, int64 at, Y alpha, Y beta, Records<G>& records,
                         Columns<Y, V, W, G * V> (*taken)[G], int* taken_from) {
    typedef Columns<Y, V, W, G * V> Part;
    const int slot = threadIdx.x / G, member = threadIdx.x % G;
    const bool active = L == WARP || slot < L;
    const int own = active ? slot : 0;
    const int64 first = m.step_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const uint32* mask = m.rec_mask + first;
    const I* wb = m.rec_wb + m.rec_ptr[chunk];
    const I before = cuts.span ? m.carry_row[chunk] : I(-1);
    const I after = cuts.span && chunk + 1 < m.n_chunks ? m.carry_row[chunk + 1] : I(-1);
    const I tail = active ? m.tail[chunk * L + slot] : I(-1);
    auto put = [&](I row, const Part& sum) {
        if (row == before || row == after)
            sum.store(cuts.part + (2 * chunk + (row != before)) * k + at, at, k, alpha, Y{}, PLAIN);
        else
            sum.store(y + (int64)row * k + at, at, k, alpha, beta, UPDATE);
    };

    if (threadIdx.x < WARP) taken_from[threadIdx.x] = -1;
    const uint32 pitch = (uint32)(k * sizeof(Y));
    const Stored<A>* val = values.slot + (first * L + own);
    col += own;
    C c[U];
    auto load_columns = [&](int begin) {
#pragma unroll
        for (int u = 0; u < U; ++u) c[u] = cached(col + min(begin + u, n_steps - 1) * (int64)L);
    };
    Part sum = {}, entry = {};
    if (n_steps) load_columns(0);
#pragma unroll 1
    for (int begin = 0; begin < n_steps; begin += U) {
        const int part = begin / WARP % G;
        if (begin % WARP == 0) {
            if (begin) wb += records.total[(part + G - 1) % G];
            if (part == 0) records.read(mask + begin, n_steps - begin);
        }
        Stored<A> v[U];
        Part of_x[U];
        I row[U];
#pragma unroll
        for (int u = 0; u < U; ++u) of_x[u].load(row_at(x, c[u], pitch), at, k);
#pragma unroll
        for (int u = 0; u < U; ++u) v[u] = cached(val + min(begin + u, n_steps - 1) * (int64)L);
        load_columns(begin + U);  // ahead, so that the next rows of X do not wait for them
        const uint32 ends = active ? records.of_lane[part][own] >> begin % WARP : 0;
#pragma unroll
        for (int u = 0; u < U; ++u)
            row[u] = ends >> u & 1 ? cached(wb + records.number(part, begin % WARP + u, slot)) : I(0);
#pragma unroll
        for (int u = 0; u < U; ++u) {
            sum.add_product(values.template decoded<Y>(v[u]), of_x[u]);
            if (!(ends >> u & 1)) continue;
            if (row[u] >= 0) {
                put(row[u], sum);
            } else if (~row[u] == slot) {
                entry = sum;
            } else {
                taken[slot][member] = sum;
                if (member == 0) taken_from[slot] = (int)~row[u];
            }
            sum = {};
        }
    }
    __syncthreads();
    const int from = taken_from[lane_id()];
    uint32 others = 0;
#pragma unroll 1
    for (int i = 0; i < WARP / G; ++i) {
        const uint32 of = __ballot_sync(FULL, from == (int)threadIdx.x / WARP * (WARP / G) + i);
        if (lane_id() / G == i) others = of;
    }
    if (tail >= 0) {
#pragma unroll 1
        for (; others; others &= others - 1) entry.add(taken[__ffs(others) - 1][member]);
        put(tail, entry);
    }
    if (before >= 0 || after >= 0)
        add_parts<Part, G>(cuts, m, chunk, before, after, y, k, at, alpha, beta, UPDATE, taken, taken_from);
}

// The launch bounds: 512 threads a multiprocessor, so at most 128 registers a thread.
template <class A, class Y, class I, int L, int G, int V, int W, int U, int UPDATE>
__global__ __launch_bounds__(WARP* G, 16 / G) void cvr_matmat(const Cvr<A, I> m, int64 k, const Y* __restrict__ x,
                                                              Y* __restrict__ y, const MatrixCuts<Y> cuts, Y alpha, Y beta) {
    const Opened<A>& values = m.val.opened();
    const int64 at = (blockIdx.y * (int64)(W * G) + threadIdx.x % G) * V;
    const int64 stride = gridDim.x * (int64)WARP;
#pragma unroll 1
    for (int64 i = blockIdx.x * (int64)WARP + threadIdx.x / G; i < m.n_empty; i += stride)
        Columns<Y, V, W, G * V>{}.store(y + m.empty_row[i] * k + at, at, k, alpha, beta, UPDATE);
    const int64 chunk = blockIdx.x;
    if (chunk >= m.n_chunks) return;
    __shared__ Records<G> records;
    __shared__ Columns<Y, V, W, G * V> taken[WARP][G];  // what a lane adds to another one's entry,
    __shared__ int taken_from[WARP];                    // and which; -1: nothing
    const I base = m.col_base[chunk];
    const int64 start = m.col_ptr[chunk];
    if (base >= 0)
        multiply<A, Y, I, L, G, V, W, U, UPDATE>(m, values, chunk, m.col_narrow + start, x + (int64)base * k + at, y, cuts, k, at,
                                                 alpha, beta, records, taken, taken_from);
    else
        multiply<A, Y, I, L, G, V, W, U, UPDATE>(m, values, chunk, m.col_wide + start, x + at, y, cuts, k, at, alpha, beta,
                                                 records, taken, taken_from);
}
