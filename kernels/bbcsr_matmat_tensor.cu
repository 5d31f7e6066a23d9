// Y = alpha * A @ X + beta * Y for BBCSR with blocks of 2 to 8, float64, by the tensor cores of sm_80 and later.

#include "values.cuh"
#include "bbcsr.cuh"
#include "matrix.cuh"

// d (16 columns of X, 8 rows of A) += X^T (16, 4) A^T (4, 8): lane 4 g + t holds columns g and g + 8 of row t of X, and
// row g, column t of A; of d columns g and g + 8 of rows 2 t and 2 t + 1
__device__ inline void multiply_add(double (&d)[4], double x0, double x1, double a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(x0), "d"(x1), "d"(a));
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d[0]), "+d"(d[1]) : "d"(x0), "d"(a));
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d[2]), "+d"(d[3]) : "d"(x1), "d"(a));
#endif
}
__device__ inline void multiply_add(double (&d)[2], double x, double a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d[0]), "+d"(d[1]) : "d"(x), "d"(a));
#endif
}

// what lanes without a column load
__device__ const double zeros[128] = {};

template <class A, class I, int B, int V, int W, int R, class O, class C>
__device__ void multiply(const C* col, const Opened<A>& data, int n_blocks, const double* x, O row_of_x,
                         Columns<double, V, W, 8 * V> (&sum)[2]) {
    constexpr int BLOCKS = 4 * R / B;  // of a round
    static_assert(4 * R % B == 0, "a round has whole blocks");
    const int t = threadIdx.x % 4;
    auto origin = reinterpret_cast<const Vector<double, V>*>(x);
    asm("" : "+l"(origin));  // one pointer, not a sum of two for each row
    C c_next[R];
    double d[(V * W + 1) / 2][V * W > 1 ? 4 : 2] = {};
    auto load_columns = [&](int first) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int block = first + (4 * r + t) / B;
            c_next[r] = block < n_blocks ? cached(col + block * (int64)WARP) : C(-1);
        }
    };
    load_columns(0);
#pragma unroll 1
    for (int first = 0; first < n_blocks; first += BLOCKS) {
        Columns<double, V, W, 8 * V> of_x[R];
        double value[R];
        bool is_pad[R];
#pragma unroll
        for (int r = 0; r < R; ++r) is_pad[r] = is_padding<I>(c_next[r], 0);
        if (__all_sync(FULL, is_pad[0])) break;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int number = is_pad[r] ? 0 : first * B + 4 * r + t;
            const double v = data.template decoded<double>(cached(data.slot + number * (int64)WARP));
            value[r] = is_pad[r] ? 0 : v;
            const auto* const from =
                is_pad[r] ? reinterpret_cast<const Vector<double, V>*>(zeros) : origin + ((O)c_next[r] * B + (4 * r + t) % B) * row_of_x;
#pragma unroll
            for (int w = 0; w < W; ++w) of_x[r].vector[w] = cached(from + w * 8);
        }
        load_columns(first + BLOCKS);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if constexpr (V == 2) {
#pragma unroll
                for (int w = 0; w < W; ++w) multiply_add(d[w], of_x[r].vector[w].at[0], of_x[r].vector[w].at[1], value[r]);
            } else if constexpr (W == 1) {
                multiply_add(d[0], of_x[r].vector[0].at[0], value[r]);
            } else {
#pragma unroll
                for (int w = 0; w < W; w += 2) multiply_add(d[w / 2], of_x[r].vector[w].at[0], of_x[r].vector[w + 1].at[0], value[r]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < V * W; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) sum[i].vector[n / V].at[n % V] = d[n / 2][n % 2 * 2 + i];
}

// mapping   a warp a block row, and 8 * V * W columns
template <class A, class I, class M, int B, int V, int W, int R, int WARPS, int MIN, class O>
__global__ __launch_bounds__(WARPS * WARP, MIN) void bbcsr_matmat_tensor(const Bbcsr<A, I, M> m, int64 k, const double* __restrict__ x, double* __restrict__ y,
                                    double alpha, double beta, int update) {
    const Opened<A>& values = m.data.opened();
    const int64 first_row = (blockIdx.x * (int64)WARPS + threadIdx.x / WARP) * B;
    if (first_row >= m.n_rows) return;
    const int g = lane_id() / 4, t = lane_id() % 4;
    const int64 begin = tile_of_block() * (W * 8 * V), at = max(min(begin, k - W * 8 * V), (int64)0) + g * V;
    const Bin<A, I, M, B, false> own(m, values, first_row / WARP, first_row % WARP);
    const int64 row = g < B && first_row + g < m.n_rows ? first_row + g : first_row;
    const Opened<A> data = values + (m.bin_rowptr[row / WARP] + row % WARP);
    x += at < k ? at : 0;
    Columns<double, V, W, 8 * V> sum[2];
    if (own.is_narrow())
        multiply<A, I, B, V, W, R, O>(own.narrow(m), data, own.n_blocks, x + own.origin() * k, (O)(k / V), sum);
    else
        multiply<A, I, B, V, W, R, O>(own.wide(m), data, own.n_blocks, x, (O)(k / V), sum);
#pragma unroll
    for (int i = 0; i < 2; ++i)
        if (2 * t + i < B && first_row + 2 * t + i < m.n_rows)
            sum[i].store(y + (first_row + 2 * t + i) * k + at, at, k, alpha, beta, update, begin);
}
