// y = alpha * A @ x + beta * y for BBCSR.

#include "bbcsr.cuh"

// bbcsr_matvec: all bins
//
// mapping   one warp a bin, one thread a row
// traffic   slot: sizeof(A) + (2 or sizeof(I)) / B bytes, with holes sizeof(M) / B more; and x; row: sizeof(Y)
// requires  blocks of a row before its padding (invariant 3); padding and holes are never multiplied
// races     none: a thread owns its row
//
// U blocks are loaded before the first is used; of the bin's last few, only those that are there.
template <class A, class Y, class I, class M, int B, int U, bool HOLES, bool ALL, class C>
__device__ Y add_blocks(const C* col, const A* data, const M* present, int count, const Y* x, Y sum) {
    C c[U];
    M bits[U];
    A v[U][B];
    Y xs[U][B];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const bool here = ALL || u < count;
        c[u] = here ? stream(col + u * WARP) : C(-1);
        if (HOLES) bits[u] = here ? stream(present + u * WARP) : M(0);
#pragma unroll
        for (int j = 0; j < B; ++j) v[u][j] = here ? stream(data + (u * B + j) * WARP) : A{};
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const bool here = !is_padding<I>(c[u], 0);
#pragma unroll
        for (int j = 0; j < B; ++j) {
            const bool entry = here && (!HOLES || (bits[u] >> j & 1));
            xs[u][j] = entry ? cached(x + (int64)c[u] * B + j) : Y{};
        }
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
        for (int j = 0; j < B; ++j) sum = mac(Widen<Y, A>::from(v[u][j]), xs[u][j], sum);
    return sum;
}

template <class A, class Y, class I, class M, int B, int U, bool HOLES, class C>
__device__ Y row_sum(const Bbcsr<A, I, M>& m, const C* col, int64 first, int n_blocks, const Y* x) {
    const int lane = lane_id();
    const A* data = m.data + first + lane;
    const M* present = HOLES ? m.present + first / B + lane : nullptr;
    col += lane;
    Y sum{};
    int block = 0;
#pragma unroll 1
    for (; block + U <= n_blocks; block += U) {
        sum = add_blocks<A, Y, I, M, B, U, HOLES, true>(col, data, present, U, x, sum);
        col += U * WARP;
        data += U * B * WARP;
        if (HOLES) present += U * WARP;
    }
    if (block < n_blocks)
        sum = add_blocks<A, Y, I, M, B, U, HOLES, false>(col, data, present, n_blocks - block, x, sum);
    return sum;
}

template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES>
__global__ void bbcsr_matvec(const Bbcsr<A, I, M> m, const Y* __restrict__ x, Y* __restrict__ y, Y alpha, Y beta,
                             int update) {
    const int64 bin = warp_id();
    if (bin >= m.n_bins) return;
    const int64 first = m.bin_rowptr[bin];
    const int n_blocks = (int)((m.bin_rowptr[bin + 1] - first) / (WARP * B));
    const I base = m.col_base[bin];
    const int64 start = m.col_ptr[bin];
    const Y sum = base >= 0
        ? row_sum<A, Y, I, M, B, U_NARROW, HOLES>(m, m.col_narrow + start, first, n_blocks, x + (int64)base * B)
        : row_sum<A, Y, I, M, B, U_WIDE, HOLES>(m, m.col_wide + start, first, n_blocks, x);
    const int64 row = bin * WARP + lane_id();
    if (row < m.n_rows) store(y + row, sum, alpha, beta, update);
}
