// Y = alpha * A @ X + beta * Y for BBCSR, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for the lanes.

#include "bbcsr.cuh"
#include "matrix.cuh"

// bbcsr_matmat: all bins
//
// mapping   one warp a bin and G * V columns (blockIdx.y counts these)
// traffic   for each G * V columns: sizeof(A) + (2 or sizeof(I)) / B bytes a slot, with holes sizeof(M) / B more, and
//           X; Y once
// requires  a row's blocks come before its padding (invariant 3); V divides k. Padding and holes are never multiplied
// races     none: a warp owns its rows' columns
template <class A, class Y, class I, class M, int B, bool HOLES, int G, int V, int U, class C>
__device__ void bin_matmat(const C* col, const A* data, const M* present, int n_blocks, const Y* x, int64 k, bool inside,
                           Vector<Y, V> (&sum)[G]) {
    const int lane = lane_id(), group = lane / G;
    for (int block = 0; block < n_blocks; block += U) {
        C c[U];
        M bits[U];
        A v[U][B];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = block + u < n_blocks;
            c[u] = here ? stream(col + (int64)(block + u) * WARP) : C(-1);
            bits[u] = HOLES && here ? stream(present + (int64)(block + u) * WARP) : M(0);
#pragma unroll
            for (int j = 0; j < B; ++j) v[u][j] = here ? stream(data + ((int64)(block + u) * B + j) * WARP) : A{};
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
#pragma unroll
            for (int turn = 0; turn < G; ++turn) {
                const int slot = turn * (WARP / G) + group;
                const C of_slot = (C)__shfl_sync(FULL, c[u], slot);
                const unsigned marks = HOLES ? __shfl_sync(FULL, (unsigned)bits[u], slot) : 0;
                const bool here = inside && !is_padding<I>(of_slot, 0);
                const Y* from = x + (int64)of_slot * B * k;
#pragma unroll
                for (int j = 0; j < B; ++j) {
                    const Y value = Widen<Y, A>::from(shuffle(v[u][j], slot));
                    if (here && (!HOLES || (marks >> j & 1))) add_product(sum[turn], value, load_vector<Y, V>(from + j * k));
                }
            }
        }
    }
}

template <class A, class Y, class I, class M, int B, bool HOLES, int G, int V, int U>
__global__ void bbcsr_matmat(const Bbcsr<A, I, M> m, int64 k, const Y* __restrict__ x, Y* __restrict__ y, Y alpha, Y beta,
                             int update) {
    const int64 bin = warp_id();
    if (bin >= m.n_bins) return;
    const int lane = lane_id();
    const int64 at = (blockIdx.y * (int64)G + lane % G) * V;
    const bool inside = at < k;
    const int64 first = m.bin_rowptr[bin], start = m.col_ptr[bin] + lane;
    const int n_blocks = (int)((m.bin_rowptr[bin + 1] - first) / (WARP * B));
    const I base = m.col_base[bin];
    const A* data = m.data + first + lane;
    const M* present = HOLES ? m.present + first / B + lane : nullptr;
    Vector<Y, V> sum[G] = {};
    if (base >= 0)
        bin_matmat<A, Y, I, M, B, HOLES, G, V, U>(m.col_narrow + start, data, present, n_blocks, x + (int64)base * B * k + at,
                                                  k, inside, sum);
    else
        bin_matmat<A, Y, I, M, B, HOLES, G, V, U>(m.col_wide + start, data, present, n_blocks, x + at, k, inside, sum);
#pragma unroll
    for (int turn = 0; turn < G; ++turn) {
        const int64 row = bin * WARP + turn * (WARP / G) + lane / G;
        if (inside && row < m.n_rows) store_vector(y + row * k + at, sum[turn], alpha, beta, update);
    }
}
