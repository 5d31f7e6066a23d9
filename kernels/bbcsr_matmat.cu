// Y = alpha * A @ X + beta * Y for BBCSR, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for the groups.

#include "bbcsr.cuh"
#include "matrix.cuh"

// groups that a bin needs, if each has the rows of one block row, or of the part of it in this bin; with R = 1 one for each row
__device__ constexpr int groups_a_bin(int R) {
    int apart = 1;  // the largest power of two that divides R: block rows begin at multiples of it in a bin
    while (R % (2 * apart) == 0 && apart < WARP) apart *= 2;
    return (R - apart + WARP - 1) / R + 1;
}

// One row, entry by entry
template <class A, class Y, class I, class M, int B, bool HOLES, int G, int V, int W, int AHEAD, class C>
__device__ void multiply(const C* col, const A* data, const M* present, int n_blocks, int, const Y* x, int64 at, int64 k,
                         Columns<Y, V, W, G * V> (&sum)[1]) {
    constexpr int N = G > 8 ? G : 8;
    const int n_entries = n_blocks * B;
    Batch<A, I, G, N> batch, next;
    auto load = [&](int begin) {
        next.load([&](int e, I& column, A& value) {
            const int entry = begin + e, block = entry / B, j = entry % B;
            if (entry >= n_entries) return;
            const C of_block = cached(col + block * (int64)WARP);
            if (is_padding<I>(of_block, 0)) return;
            if (HOLES && !((unsigned)cached(present + block * (int64)WARP) >> j & 1)) return;
            column = I(of_block) * B + j;
            value = cached(data + entry * (int64)WARP);
        });
    };
    load(0);
    for (int begin = 0; begin < n_entries; begin += N) {
        batch = next;
        if (begin + N < n_entries) load(begin + N);
        batch.template multiply<AHEAD>(x, at, k, sum[0], [](int) {});
    }
}

// The rows of one block row in one bin, block by block: R = B sums for each column of the lane
template <class A, class Y, class I, class M, int B, bool HOLES, int G, int V, int W, int U, class C, int R>
__device__ void multiply(const C* col, const A* data, const M* present, int n_blocks, int n_rows, const Y* x, int64 at, int64 k,
                         Columns<Y, V, W, G * V> (&sum)[R]) {
    static_assert(R == B, "a group has one row, or those of a block row");
    constexpr unsigned WHOLE = (1u << B) - 1;
    Batch<A, I, G, U * B * R> batch, next;
    C c[U], c_next[U];
    auto load = [&](int first) {
#pragma unroll
        for (int u = 0; u < U; ++u) c_next[u] = first + u < n_blocks ? cached(col + (first + u) * (int64)WARP) : C(-1);
        next.load([&](int e, I&, A& value) {
            const int block = first + e / (B * R), j = e / R % B, i = e % R;
            if (e < U * B * R && block < n_blocks && i < n_rows) value = cached(data + (block * (int64)B + j) * WARP + i);
        });
    };
    load(0);
    for (int first = 0; first < n_blocks; first += U) {
        batch = next;
        bool here[U];                     // the block is one, not padding
        unsigned marks[U][R], stored[U];  // entries of the block in each row, and in any row
#pragma unroll
        for (int u = 0; u < U; ++u) {
            c[u] = c_next[u];
            here[u] = !is_padding<I>(c[u], 0);
            stored[u] = HOLES || !here[u] ? 0 : WHOLE;
#pragma unroll
            for (int i = 0; i < R; ++i) {
                marks[u][i] = HOLES && here[u] && i < n_rows ? (unsigned)cached(present + (first + u) * (int64)WARP + i) : 0;
                stored[u] |= marks[u][i];
            }
        }
        if (!here[0]) break;
        if (first + U < n_blocks) load(first + U);
        Columns<Y, V, W, G * V> of_x[U][B];
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int j = 0; j < B; ++j)
                if (stored[u] >> j & 1) of_x[u][j].load(x + ((int64)c[u] * B + j) * k, at, k);
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int j = 0; j < B; ++j)
#pragma unroll
                for (int i = 0; i < R; ++i) {
                    const Y value = Widen<Y, A>::from(batch.value_of((u * B + j) * R + i));
                    if (HOLES ? marks[u][i] >> j & 1 : here[u]) sum[i].add_product(value, of_x[u][j]);
                }
    }
}

// bbcsr_matmat: all rows
//
// mapping   one group of G lanes R rows and W * G * V columns (blockIdx.y counts these). R is 1, or B: then a row of X is loaded
//           once for all rows of a block row. A thread block takes its groups' rows in `rounds`, so that it goes through
//           neighbouring rows and finds their rows of X in L1
// traffic   slot: sizeof(A) + (2 or sizeof(I)) / B bytes for each W * G * V columns, with holes sizeof(M) / B more; a row of X
//           for each nonzero (R = 1) or each nonzero column of a block, from L1 or L2; Y once
// requires  blocks of a row before its padding (invariant 3), the same block columns in the rows of a block row; padding and
//           holes are never multiplied, nor are their rows of X loaded; V divides k
// races     none: a group owns its rows' columns
template <class A, class Y, class I, class M, int B, bool HOLES, int R, int G, int V, int W, int U>
__global__ void bbcsr_matmat(const Bbcsr<A, I, M> m, int64 k, const Y* __restrict__ x, Y* __restrict__ y, Y alpha, Y beta,
                             int update, int rounds) {
    constexpr int GROUPS = groups_a_bin(R);
    const int64 at = (blockIdx.y * (int64)(W * G) + threadIdx.x % G) * V;
    for (int round = 0; round < rounds; ++round) {
        const int64 group = (blockIdx.x * (int64)rounds + round) * (blockDim.x / G) + threadIdx.x / G;
        const int64 bin = group / GROUPS;
        if (bin >= m.n_bins) return;
        const int64 block_row = bin * WARP / R + group % GROUPS;
        const int64 row = max(block_row * R, bin * WARP), end = min(min(block_row * R + R, bin * WARP + WARP), m.n_rows);
        if (row >= end) continue;
        const int lane = (int)(row - bin * WARP), n_rows = (int)(end - row);
        const int64 first = m.bin_rowptr[bin], start = m.col_ptr[bin] + lane;
        const int n_blocks = (int)((m.bin_rowptr[bin + 1] - first) / (WARP * B));
        const I base = m.col_base[bin];
        const A* data = m.data + first + lane;
        const M* present = HOLES ? m.present + first / B + lane : nullptr;
        Columns<Y, V, W, G * V> sum[R] = {};
        if (base >= 0)
            multiply<A, Y, I, M, B, HOLES, G, V, W, U>(m.col_narrow + start, data, present, n_blocks, n_rows,
                                                       x + (int64)base * B * k + at, at, k, sum);
        else
            multiply<A, Y, I, M, B, HOLES, G, V, W, U>(m.col_wide + start, data, present, n_blocks, n_rows, x + at, at, k, sum);
#pragma unroll
        for (int i = 0; i < R; ++i)
            if (i < n_rows) sum[i].store(y + (row + i) * k + at, at, k, alpha, beta, update);
    }
}
