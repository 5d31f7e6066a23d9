// Y = alpha * A @ X + beta * Y for CVR, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for the lanes.

#include "cvr.cuh"
#include "matrix.cuh"

// cvr_matmat: all chunks
//
// mapping   one warp a chunk and G * V columns (blockIdx.y counts these); a slot is a lane of the chunk
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes for each G * V columns, and X; row: sizeof(I) + k sizeof(Y)
// requires  every row has one owner (invariant 5), so Y need not be zeroed; pads follow a lane's last record (invariant
//           6); V divides k
// races     none: rows, carries and empty rows have one owner each; the parts of a stolen row are added up in shared
//           memory, one lane after the other
template <class A, class Y, class I, int L, int G, int V, int U, class C>
__device__ void chunk_matmat(const Cvr<A, I>& m, int64 chunk, const C* col, const Y* x, Y* y, Y* carry, int64 k, int64 at,
                             Y alpha, Y beta, int update, Vector<Y, V> (*entries)[G]) {
    const int lane = lane_id(), group = lane / G, member = lane % G;
    const bool active = L == WARP || lane < L, inside = at < k;
    const unsigned below = (1u << lane) - 1;
    const int64 first = m.step_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const int own = active ? lane : 0;
    const A* val = m.val + first * L + own;
    col += own;
    const uint32* mask = m.rec_mask + first;
    const I* wb = m.rec_wb + m.rec_ptr[chunk];
    const I tail = active ? m.tail[chunk * L + lane] : I(-1);
    const I carry_row = m.carry_row[chunk];

    auto put = [&](I row, const Vector<Y, V>& sum) {
        if (row == carry_row)
            store_vector(carry + chunk * k + at, sum, alpha, Y{}, update == ACCUMULATE ? SCALE : update);
        else
            store_vector(y + (int64)row * k + at, sum, alpha, beta, update);
    };

    Vector<Y, V> sum[G] = {};
    for (int slot = group; slot < WARP; slot += WARP / G) entries[slot][member] = {};
    __syncwarp();
    for (int begin = 0; begin < n_steps; begin += U) {
        C c[U];
        A v[U];
        unsigned records[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int step = min(begin + u, n_steps - 1);  // the last step may be loaded again, and is not used then
            records[u] = begin + u < n_steps ? stream(mask + step) : 0;
            c[u] = stream(col + (int64)step * L);
            v[u] = stream(val + (int64)step * L);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (begin + u >= n_steps) break;
            const I target = records[u] >> lane & 1 ? stream(wb + __popc(records[u] & below)) : I(0);
            wb += __popc(records[u]);
            const unsigned to_entry = __ballot_sync(FULL, target < 0);
#pragma unroll
            for (int turn = 0; turn < G; ++turn) {
                const int slot = turn * (WARP / G) + group;
                const C of_slot = (C)__shfl_sync(FULL, c[u], slot);
                const Y value = Widen<Y, A>::from(shuffle(v[u], slot));
                if (inside && (L == WARP || slot < L))
                    add_product(sum[turn], value, load_vector<Y, V>(x + (int64)of_slot * k));
                if (!records[u]) continue;
                const I row = shuffle(target, slot);
                if ((records[u] & ~to_entry) >> slot & 1) {
                    if (inside) put(row, sum[turn]);
                    sum[turn] = {};
                }
                // parts for entries of tail: one slot after the other, so that they are added in the order of the slots
                constexpr unsigned EVERY = G == WARP ? 1u : G == 1 ? FULL : (1u << (WARP / G)) - 1;
                for (unsigned left = to_entry >> turn * (WARP / G) & EVERY; left; left &= left - 1) {
                    if (group == __ffs(left) - 1) {
                        Vector<Y, V>& entry = entries[(int)~row][member];
#pragma unroll
                        for (int i = 0; i < V; ++i) entry.at[i] = add(entry.at[i], sum[turn].at[i]);
                        sum[turn] = {};
                    }
                    __syncwarp();
                }
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (int turn = 0; turn < G; ++turn) {
        const int slot = turn * (WARP / G) + group;
        const I row = shuffle(tail, slot);
        if (inside && row >= 0) put(row, entries[slot][member]);
    }
}

template <class A, class Y, class I, int L, int G, int V, int U, int WARPS>
__global__ void cvr_matmat(const Cvr<A, I> m, int64 k, const Y* __restrict__ x, Y* __restrict__ y, Y* __restrict__ carry,
                           Y alpha, Y beta, int update) {
    __shared__ Vector<Y, V> entries[WARPS][WARP][G];
    const int lane = lane_id();
    const int64 at = (blockIdx.y * (int64)G + lane % G) * V;
    const int64 stride = gridDim.x * (int64)blockDim.x / G;
    for (int64 i = (blockIdx.x * (int64)blockDim.x + threadIdx.x) / G; i < m.n_empty; i += stride)
        if (at < k) store_vector(y + m.empty_row[i] * k + at, Vector<Y, V>{}, alpha, beta, update);
    const int64 chunk = warp_id();
    if (chunk >= m.n_chunks) return;
    const I base = m.col_base[chunk];
    const int64 start = m.col_ptr[chunk];
    auto& own = entries[threadIdx.x / WARP];
    if (base >= 0)
        chunk_matmat<A, Y, I, L, G, V, U>(m, chunk, m.col_narrow + start, x + (int64)base * k + at, y, carry, k, at, alpha,
                                          beta, update, own);
    else
        chunk_matmat<A, Y, I, L, G, V, U>(m, chunk, m.col_wide + start, x + at, y, carry, k, at, alpha, beta, update, own);
}

// cvr_carry_rows: Y[cut_row[i]] += the carries of chunks cut_ptr[2 i] .. cut_ptr[2 i + 1] - 1
//
// mapping   one block a cut row, one thread a column
// traffic   k sizeof(Y) bytes a cut chunk, 16 + sizeof(I) + 2 k sizeof(Y) a cut row
// requires  carries are scaled by alpha, and Y holds the part of the row's first chunk
// races     none: one thread owns a sum, and adds its terms in order
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
