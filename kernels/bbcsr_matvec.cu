// y = alpha * A @ x + beta * y for BBCSR.

#include "bbcsr.cuh"

// bbcsr_matvec: all bins
//
// mapping   S warps of one thread block a bin, one thread of each a row: of the row's groups of U blocks, warp p of the S takes
//           groups p, p + S, ... Few bins alone would not keep the device busy, and a long row would take long
// traffic   slot: sizeof(A) + (2 or sizeof(I)) / B bytes, with holes sizeof(M) / B more; and x; row: sizeof(Y)
// requires  blocks of a row before its padding (invariant 3); padding and holes are never multiplied
// races     none: S threads own a row; their parts are added in the order of the warps
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
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
        for (int j = 0; j < B; ++j) v[u][j] = ALL || u < count ? stream(data + (u * B + j) * WARP) : A{};
    // keeps the loads of values above those of x. Without it the compiler asks for values where columns are there already, and
    // needs fewer registers: better for single columns, and large blocks have too many values
    if (B > 1 && B <= 6) __syncwarp();
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const bool here = !is_padding<I>(c[u], 0);
        const Y* from = x + (I)c[u] * B;
#pragma unroll
        for (int j = 0; j < B; ++j) {
            const bool entry = here && (!HOLES || (bits[u] >> j & 1));
            xs[u][j] = entry ? cached(from + j) : Y{};
        }
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
        for (int j = 0; j < B; ++j) sum = mac(Widen<Y, A>::from(v[u][j]), xs[u][j], sum);
    return sum;
}

template <class A, class Y, class I, class M, int B, int U, bool HOLES, int S, class C>
__device__ Y row_sum(const Bbcsr<A, I, M>& m, const C* col, int64 first, int n_blocks, int part, const Y* x) {
    const int slot = part * U * WARP + lane_id();
    const A* data = m.data + first + (int64)part * U * B * WARP + lane_id();
    const M* present = HOLES ? m.present + first / B + slot : nullptr;
    col += slot;
    asm("" : "+l"(x));  // one pointer, not a sum of two for each entry
    Y sum{};
    int block = part * U;
#pragma unroll 1
    for (; block + U <= n_blocks; block += S * U) {
        sum = add_blocks<A, Y, I, M, B, U, HOLES, true>(col, data, present, U, x, sum);
        col += S * U * WARP;
        data += S * U * B * WARP;
        if (HOLES) present += S * U * WARP;
    }
    if (block < n_blocks)
        sum = add_blocks<A, Y, I, M, B, U, HOLES, false>(col, data, present, n_blocks - block, x, sum);
    return sum;
}

template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S>
__global__ __launch_bounds__(S > 4 ? S * WARP : 4 * WARP) void bbcsr_matvec(const Bbcsr<A, I, M> m,
                                                                            const Y* __restrict__ x, Y* __restrict__ y,
                                                                            Y alpha, Y beta, int update) {
    const int part = S == 1 ? 0 : threadIdx.x / WARP % S;
    const int64 bin = warp_id() / S;
    Y sum{};
    if (bin < m.n_bins) {
        const int64 first = m.bin_rowptr[bin];
        const int n_blocks = (int)((m.bin_rowptr[bin + 1] - first) / (WARP * B));
        const I base = m.col_base[bin];
        const int64 start = m.col_ptr[bin];
        sum = base >= 0
            ? row_sum<A, Y, I, M, B, U_NARROW, HOLES, S>(m, m.col_narrow + start, first, n_blocks, part, x + (int64)base * B)
            : row_sum<A, Y, I, M, B, U_WIDE, HOLES, S>(m, m.col_wide + start, first, n_blocks, part, x);
    }
    if constexpr (S > 1) {
        constexpr int MOST_WARPS = 16;
        __shared__ Y sums[MOST_WARPS * WARP];
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (part == 0)
            for (int p = 1; p < S; ++p) sum = add(sum, sums[threadIdx.x + p * WARP]);
    }
    const int64 row = bin * WARP + lane_id();
    if (part == 0 && row < m.n_rows) store(y + row, sum, alpha, beta, update);
}
