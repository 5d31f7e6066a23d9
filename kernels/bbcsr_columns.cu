// Y = alpha * A @ X + beta * Y for BBCSR, and X whose columns are contiguous.

#include "values.cuh"
#include "bbcsr.cuh"
#include "matrix.cuh"

// the tables of a row's next U blocks; of the bin's last few, only those that are there
template <class A, class I, class M, int B, int U, bool HOLES, class C>
struct Blocks {
    C col[U];
    M present[U];
    Stored<A> value[U][B];

    __device__ void load(const C* cols, const M* presents, const Opened<A>& data, int count) {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = u < count;
            col[u] = here ? stream(cols + u * WARP) : C(-1);
            if (HOLES) present[u] = here ? stream(presents + u * WARP) : M(0);
#pragma unroll
            for (int j = 0; j < B; ++j) value[u][j] = here ? stream(data.slot + (u * B + j) * WARP) : Stored<A>{};
        }
    }

    __device__ bool has(int u, int j) const { return !is_padding<I>(col[u], 0) && (!HOLES || (present[u] >> j & 1)); }
};

// sum[i] += the share of warp `part` of the S of a bin's row, with the column of X that begins at x[i]; block columns count
// from `origin`. The next blocks are loaded before the sums wait for X.
template <class A, class Y, class I, class M, int B, int U, bool HOLES, int S, int K, class C>
__device__ void add_row(const C* col, Opened<A> data, const M* present, int n_blocks, int part, const Y* const (&x)[K],
                        uint32 origin, Y (&sum)[K]) {
    const int slot = part * U * WARP + lane_id();
    data += part * U * B * WARP + lane_id();
    if (HOLES) present += slot;
    col += slot;
    int left = n_blocks - part * U;
    Blocks<A, I, M, B, U, HOLES, C> now, next;
    now.load(col, present, data, left);
#pragma unroll 1
    for (; left > 0; left -= S * U) {
        Y xs[U][B][K];
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int j = 0; j < B; ++j) {
                // an entry that is not there is another one, which is not multiplied: a load costs less than a decision
                const uint32 at = now.has(u, j) ? origin + (uint32)now.col[u] * B + j : origin;
#pragma unroll
                for (int i = 0; i < K; ++i) xs[u][j][i] = cached(x[i] + at);
            }
        col += S * U * WARP;
        data += S * U * B * WARP;
        if (HOLES) present += S * U * WARP;
        next.load(col, present, data, left - S * U);
        __syncwarp();  // keeps all loads above the first product, which waits
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int j = 0; j < B; ++j) {
                const Y value = data.template decoded<Y>(now.value[u][j]);
#pragma unroll
                for (int i = 0; i < K; ++i)
                    if (now.has(u, j)) sum[i] = mac(value, xs[u][j][i], sum[i]);
            }
        now = next;
    }
}

// bbcsr_columns: all bins
//
// mapping   as bbcsr_matvec, with K columns of X at a time: S warps of one thread block a bin, one thread of each a row and
//           its K sums. Tiles of K columns are neighbouring thread blocks, which read the same tables at a time
// traffic   that of bbcsr_matvec, of X and Y for each column; tables come from L2 for all tiles but one
// requires  blocks of a row before its padding (invariant 3); padding and holes are never multiplied. Columns of X begin
//           `x_apart` numbers from each other, less than 2^32 rows of it. V > 1: rows of Y are V numbers wide or a multiple,
//           and begin at multiples of their size. V = 1: rows and columns of Y lie anywhere, `y_row` and `y_apart` numbers apart
// races     none: S threads own a row; their parts are added in the order of the warps
template <class A, class Y, class I, class M, int B, int U, bool HOLES, int S, int K, int V, int THREADS>
__global__ __launch_bounds__(THREADS) void bbcsr_columns(const Bbcsr<A, I, M> m, const Y* __restrict__ x, int64 x_apart, int k,
                                                         Y* __restrict__ y, int64 y_row, int64 y_apart, Y alpha, Y beta,
                                                         int update) {
    constexpr int BINS = THREADS / (WARP * S);  // of a thread block
    const int part = S == 1 ? 0 : threadIdx.x / WARP % S;
    const int tiles = (k + K - 1) / K, first = blockIdx.x % tiles * K;
    const int64 bin = blockIdx.x / tiles * (int64)BINS + threadIdx.x / (WARP * S);
    const Opened<A>& values = m.data.opened();
    Y sum[K] = {};
    if (bin < m.n_bins) {
        const Y* columns[K];
#pragma unroll
        for (int i = 0; i < K; ++i) {
            columns[i] = x + min(first + i, k - 1) * x_apart;  // beyond the last column that one again, which is not stored
            asm("" : "+l"(columns[i]));  // one pointer, not a product for each entry
        }
        const Bin<A, I, M, B, HOLES> own(m, values, bin, 0);
        if (own.is_narrow())
            add_row<A, Y, I, M, B, U, HOLES, S>(own.narrow(m), own.data, own.present, own.n_blocks, part, columns,
                                                (uint32)own.origin(), sum);
        else
            add_row<A, Y, I, M, B, U, HOLES, S>(own.wide(m), own.data, own.present, own.n_blocks, part, columns, 0u, sum);
    }
    if constexpr (S > 1) {
        __shared__ Y sums[K][THREADS];
#pragma unroll
        for (int i = 0; i < K; ++i) sums[i][threadIdx.x] = sum[i];
        __syncthreads();
        if (part == 0)
            for (int p = 1; p < S; ++p)
#pragma unroll
                for (int i = 0; i < K; ++i) sum[i] = add(sum[i], sums[i][threadIdx.x + p * WARP]);
    }
    const int64 row = bin * WARP + lane_id();
    if (part || row >= m.n_rows) return;
    y += row * y_row + first * y_apart;
    if constexpr (V == 1) {
#pragma unroll
        for (int i = 0; i < K; ++i)
            if (first + i < k) store(y + i * y_apart, sum[i], alpha, beta, update);
    } else {
        Columns<Y, V, K / V, V> out;
#pragma unroll
        for (int i = 0; i < K; ++i) out.vector[i / V].at[i % V] = sum[i];
        out.store(y, first, k, alpha, beta, update);
    }
}
