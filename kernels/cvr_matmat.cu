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

// cvr_matmat: all chunks
//
// mapping   one thread block a chunk and W * G * V columns (blockIdx.y counts these), one group of G lanes each lane of
//           the chunk
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes for each W * G * V columns, and a row of X from L1 or L2;
//           row: sizeof(I) + k sizeof(Y)
// requires  every row has one owner (invariant 5), so Y need not be zeroed; pads follow a lane's last record (invariant
//           6); a lane adds to its own entry of tail, and to that of one other lane, once each; V divides k; WARP * G
//           threads
// races     none: rows, carries and empty rows have one owner each. What lanes add to another one's entry meets in
//           shared memory, and is added by the entry's group in the order of lanes
template <class A, class Y, class I, int L, int G, int V, int W, int U, class C>
__device__ void multiply(const Cvr<A, I>& m, const Opened<A>& values, int64 chunk, const C* col, const Y* x, Y* y, Y* carry,
                         int64 k, int64 at, Y alpha, Y beta, int update, Records<G>& records, Columns<Y, V, W, G * V> (*taken)[G],
                         int* taken_from) {
    typedef Columns<Y, V, W, G * V> Part;
    const int slot = threadIdx.x / G, member = threadIdx.x % G;
    const bool active = L == WARP || slot < L;
    const int own = active ? slot : 0;
    const I carry_row = m.carry_row[chunk];
    auto put = [&](I row, const Part& sum) {
        if (row == carry_row)
            sum.store(carry + chunk * k + at, at, k, alpha, Y{}, update == ACCUMULATE ? SCALE : update);
        else
            sum.store(y + (int64)row * k + at, at, k, alpha, beta, update);
    };

    if (threadIdx.x < WARP) taken_from[threadIdx.x] = -1;
    const int64 first = m.step_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const uint32* mask = m.rec_mask + first;
    const I* wb = m.rec_wb + m.rec_ptr[chunk];
    const Opened<A> val = values + first * L + own;
    col += own;
    C c[U];
    auto load_columns = [&](int begin) {
#pragma unroll
        for (int u = 0; u < U; ++u) c[u] = cached(col + min(begin + u, n_steps - 1) * (int64)L);
    };
    Part sum = {}, entry = {};
    if (n_steps) load_columns(0);
    for (int begin = 0; begin < n_steps; begin += U) {
        const int part = begin / WARP % G;
        if (begin % WARP == 0) {
            if (begin) wb += records.total[(part + G - 1) % G];
            if (part == 0) records.read(mask + begin, n_steps - begin);
        }
        Stored<A> v[U];
        Part of_x[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            of_x[u].load(x + (int64)c[u] * k, at, k);
            v[u] = cached(val.slot + min(begin + u, n_steps - 1) * (int64)L);
        }
        load_columns(begin + U);  // ahead, so that the next rows of X do not wait for them
        const uint32 ends = records.of_lane[part][own] >> begin % WARP;
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (begin + u >= n_steps || !active) break;
            sum.add_product(val.template decoded<Y>(v[u]), of_x[u]);
            if (!(ends >> u & 1)) continue;
            const I row = cached(wb + records.number(part, begin % WARP + u, slot));
            if (row >= 0) {
                put(row, sum);
            } else if (~row == slot) {
                entry = sum;
            } else {
                taken[slot][member] = sum;
                if (member == 0) taken_from[slot] = (int)~row;
            }
            sum = {};
        }
    }
    __syncthreads();
    const int from = taken_from[lane_id()];
    uint32 others = 0;
    for (int i = 0; i < WARP / G; ++i) {
        const uint32 of = __ballot_sync(FULL, from == (int)threadIdx.x / WARP * (WARP / G) + i);
        if (lane_id() / G == i) others = of;
    }
    const I row = active ? m.tail[chunk * L + slot] : I(-1);
    if (row < 0) return;
    for (; others; others &= others - 1) entry.add(taken[__ffs(others) - 1][member]);
    put(row, entry);
}

// The launch bounds: 512 threads a multiprocessor, so at most 128 registers a thread.
template <class A, class Y, class I, int L, int G, int V, int W, int U>
__global__ __launch_bounds__(WARP* G, 16 / G) void cvr_matmat(const Cvr<A, I> m, int64 k, const Y* __restrict__ x,
                                                              Y* __restrict__ y, Y* __restrict__ carry, Y alpha, Y beta,
                                                              int update) {
    const Opened<A>& values = m.val.opened();
    const int64 at = (blockIdx.y * (int64)(W * G) + threadIdx.x % G) * V;
    const int64 stride = gridDim.x * (int64)WARP;
    for (int64 i = blockIdx.x * (int64)WARP + threadIdx.x / G; i < m.n_empty; i += stride)
        Columns<Y, V, W, G * V>{}.store(y + m.empty_row[i] * k + at, at, k, alpha, beta, update);
    const int64 chunk = blockIdx.x;
    if (chunk >= m.n_chunks) return;
    __shared__ Records<G> records;
    __shared__ Columns<Y, V, W, G * V> taken[WARP][G];  // what a lane adds to another one's entry,
    __shared__ int taken_from[WARP];                    // and which; -1: nothing
    const I base = m.col_base[chunk];
    const int64 start = m.col_ptr[chunk];
    if (base >= 0)
        multiply<A, Y, I, L, G, V, W, U>(m, values, chunk, m.col_narrow + start, x + (int64)base * k + at, y, carry, k, at, alpha,
                                         beta, update, records, taken, taken_from);
    else
        multiply<A, Y, I, L, G, V, W, U>(m, values, chunk, m.col_wide + start, x + at, y, carry, k, at, alpha, beta, update,
                                         records, taken, taken_from);
}

// cvr_carry_rows: Y[cut_row[i]] += the carries of chunks cut_ptr[2 i] .. cut_ptr[2 i + 1] - 1
//
// mapping   one block a cut row, one thread a column
// traffic   k sizeof(Y) bytes a cut chunk, 16 + sizeof(I) + 2 k sizeof(Y) a cut row
// requires  carries are scaled already, and Y holds the part of the row's first chunk
// races     none: one thread owns a sum, terms added in order
template <class Y, class I>
__global__ void cvr_carry_rows(const I* cut_row, const int64* cut_ptr, const Y* carry, int64 k, Y* y) {
    const int64 cut = blockIdx.x;
    Y* row = y + cut_row[cut] * k;
    for (int64 at = threadIdx.x; at < k; at += blockDim.x) {
        Y sum{};
        for (int64 chunk = cut_ptr[2 * cut]; chunk < cut_ptr[2 * cut + 1]; ++chunk) sum = add(sum, carry[chunk * k + at]);
        row[at] = add(row[at], sum);
    }
}
