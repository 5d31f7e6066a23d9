// Vectors (n, k) in C order, laid out over threads, and sums of columns over them.
//
// A block has `rows` rows of `columns` columns; blockIdx.y is the tile of columns. Sums have a fixed order: each
// thread's rows, a tree over the block's threads, and in the last block to finish the blocks' sums in the same way. So
// they have the same bits in every run on a device.

constexpr int THREADS = 256;

struct Shape {
    int64 n, k;
    int rows, columns;  // of a block

    __device__ int row_of_thread() const { return threadIdx.x / columns; }
    __device__ int64 column() const { return blockIdx.y * (int64)columns + threadIdx.x % columns; }
    __device__ bool has_column() const { return row_of_thread() < rows && column() < k; }
    __device__ int64 first_row() const { return blockIdx.x * (int64)rows + row_of_thread(); }
    __device__ int64 stride() const { return gridDim.x * (int64)rows; }
    // where a row's entry is, and the preconditioner's row
    __device__ int64 at(int64 row) const { return row * k + column(); }
    __device__ int64 inverse_row(int64 row) const { return row; }
};

// The same of a stack's systems, of which each is a column: one after the other, each with a preconditioner of its own.
struct StackShape : Shape {
    int64 inverse_rows;  // of a system's preconditioner

    __device__ int64 at(int64 row) const { return row + column() * n; }
    __device__ int64 inverse_row(int64 row) const { return row + column() * inverse_rows; }
};

template <bool STACK>
struct Shapes {
    typedef Shape Of;
};
template <>
struct Shapes<true> {
    typedef StackShape Of;
};

// Memory for sums over blocks.
struct Partials {
    double* sums;  // (tiles, blocks, N, columns)
    uint32* arrived;  // (tiles,) blocks that have finished; 0 before and after
};

// the sums of a column over the block's threads are in its first thread afterwards
template <int N>
__device__ void block_sums(const Shape& shape, double (&value)[N]) {
    constexpr int GROUP = N < 8 ? N : 8;  // that shared memory holds at a time
    __shared__ double shared[GROUP][THREADS];
    const int t = threadIdx.x;
#pragma unroll
    for (int first = 0; first < N; first += GROUP) {
        __syncthreads();  // the last ones are read
#pragma unroll
        for (int i = 0; i < GROUP && first + i < N; ++i) shared[i][t] = value[first + i];
        for (int left = shape.rows; left > 1;) {
            const int width = (left + 1) / 2 * shape.columns, end = left * shape.columns;
            left = (left + 1) / 2;
            __syncthreads();
            if (t + width < end)
#pragma unroll
                for (int i = 0; i < GROUP && first + i < N; ++i) shared[i][t] += shared[i][t + width];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < GROUP && first + i < N; ++i) value[first + i] = shared[i][t];
    }
}

// The sums of each column over all blocks: true in the threads that hold one, which are in one block. All threads must
// call it.
template <int N>
__device__ bool grid_sums(const Shape& shape, const Partials& partials, double (&value)[N]) {
    __shared__ bool is_last;
    block_sums(shape, value);
    const int t = threadIdx.x;
    double* const tile = partials.sums + blockIdx.y * (int64)gridDim.x * N * shape.columns;
    if (gridDim.x > 1) {
        if (t < shape.columns)
#pragma unroll
            for (int i = 0; i < N; ++i) tile[(blockIdx.x * N + i) * shape.columns + t] = value[i];
        __threadfence();
        __syncthreads();
        if (t == 0) is_last = atomicInc(partials.arrived + blockIdx.y, gridDim.x - 1) == gridDim.x - 1;
        __syncthreads();
        if (!is_last) return false;
        __threadfence();
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] = 0;
        if (shape.row_of_thread() < shape.rows)
#pragma unroll(N <= 4 ? 16 : 2)
            for (int g = shape.row_of_thread(); g < gridDim.x; g += shape.rows)
#pragma unroll
                for (int i = 0; i < N; ++i) value[i] += fresh(tile + (g * N + i) * shape.columns + t % shape.columns);
        block_sums(shape, value);
    }
    return t < shape.columns && shape.column() < shape.k;
}

// The same, of what `add(row, at)` adds to `value` for each of this thread's rows, whose entry is at place `at`, U rows at
// a time. A column that is not `active` has none.
template <int U, int N, class SHAPE, class F>
__device__ bool sums_of_rows(const SHAPE& shape, const Partials& partials, bool active, double (&value)[N], F add) {
    if (active)
#pragma unroll U
        for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) add(row, shape.at(row));
    return grid_sums(shape, partials, value);
}

// adds conj(x) y to the first two sums
template <int N>
__device__ void add_product(double (&sums)[N], float x, float y) { sums[0] += (double)x * y; }
template <int N>
__device__ void add_product(double (&sums)[N], double x, double y) { sums[0] = mac(x, y, sums[0]); }
template <int N, class T>
__device__ void add_product(double (&sums)[N], Complex<T> x, Complex<T> y) {
    sums[0] = mac((double)x.im, (double)y.im, mac((double)x.re, (double)y.re, sums[0]));
    sums[1] = mac(-(double)x.im, (double)y.re, mac((double)x.re, (double)y.im, sums[1]));
}
