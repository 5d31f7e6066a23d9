// y = alpha * A @ x + beta * y for small matrices of short, even rows: see gpu/short_rows.py.

#include "values.cuh"

// E slots for every row, those of 32 rows side by side: slot e of row r is at (r / 32 * E + e) * 32 + r % 32.
template <class A, class I>
struct ShortRows {
    Values<A> val;
    const I* col;  // -1: a pad
    int64 n_rows;
};

// short_rows_matvec: a thread a row
//
// mapping   a thread loads all columns and values of its row, and then all its entries of x. Where they lie is known by the
//           row's number alone, so a product waits for columns and for x, and for nothing before
// traffic   slot: sizeof(A) + sizeof(I) bytes, and x; row: sizeof(Y)
// races     none
template <class A, class Y, class I, int E, int THREADS, bool KEEPS>
__global__ __launch_bounds__(THREADS) void short_rows_matvec(const ShortRows<A, I> m, const Y* __restrict__ x, Y* __restrict__ y,
                                                             Scalar<Y> alpha, Scalar<Y> beta, int update) {
    const Opened<A>& values = m.val.opened();
    const int64 row = blockIdx.x * (int64)THREADS + threadIdx.x, first = row / WARP * (WARP * E) + lane_id();
    if (row - lane_id() >= m.n_rows) return;
    I c[E];
    Stored<A> v[E];
    Y xs[E];
#pragma unroll
    for (int e = 0; e < E; ++e) c[e] = once<KEEPS>(m.col + first + e * WARP);
#pragma unroll
    for (int e = 0; e < E; ++e) v[e] = once<KEEPS>(values.slot + first + e * WARP);
    asm("" : "+l"(x));  // one pointer, not a sum of two for each entry
    __syncwarp();       // keeps loads where they stand
#pragma unroll
    for (int e = 0; e < E; ++e) xs[e] = c[e] < 0 ? Y{} : cached(x + c[e]);
    all_asked_for(x);
    Y sum{};
#pragma unroll
    for (int e = 0; e < E; ++e) mac_unless(c[e] < 0, values.template decoded<Y>(v[e]), xs[e], sum);
    if (row < m.n_rows) store(y + row, sum, alpha, beta, update);
}

// short_rows_fill: the slots of all rows, each with the number of its nonzero's slot in the format's tables, or 0, and its column
//
// mapping   a thread a row
// traffic   nonzero: 4 + sizeof(I) bytes are read; slot: as many are written
// races     none
template <class I>
__global__ void short_rows_fill(const int64* ptr, const int* source_of, const I* col_of, int64 n_rows, int width, int* source,
                                I* col) {
    const int64 row = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (row - lane_id() >= n_rows) return;
    const int64 begin = row < n_rows ? ptr[row] : 0, length = row < n_rows ? ptr[row + 1] - begin : 0;
    int64 at = row / WARP * (WARP * width) + lane_id();
    for (int e = 0; e < width; ++e, at += WARP) {
        source[at] = e < length ? source_of[begin + e] : 0;
        col[at] = e < length ? col_of[begin + e] : I(-1);
    }
}
