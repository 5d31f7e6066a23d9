// Vector arithmetic of iterative methods, on vectors (n, k): sums and factors of columns stay on the device, in double.

#include "vectors.cuh"
#include "cg.cuh"
#include "scalars.cuh"

__device__ inline void put(double* to, const double (&sums)[2]) { *to = sums[0]; }
__device__ inline void put(complex128* to, const double (&sums)[2]) { *to = {sums[0], sums[1]}; }

// vectors_dot: sum[j] = x^H y for column j; with ROOT its root, of x^H x
//
// mapping   as vectors.cuh says
// traffic   2 vectors
template <class Y, class R, bool ROOT>
__global__ __launch_bounds__(THREADS) void vectors_dot(const Shape shape, const Partials partials, const Y* __restrict__ x,
                                                       const Y* __restrict__ y, R* sum) {
    const int64 j = shape.column();
    double sums[2] = {};
    if (shape.has_column())
#pragma unroll 4
        for (int64 row = shape.first_row(); row < shape.n; row += shape.stride())
            add_product(sums, x[row * shape.k + j], y[row * shape.k + j]);
    if (!grid_sums(shape, partials, sums)) return;
    if (ROOT) sums[0] = sqrt(sums[0]);
    put(sum + j, sums);
}

__device__ inline bool is_zero(double a) { return a == 0; }

// vectors_combine: out = a x + b y, of which what is multiplied by 0 counts as 0
//
// mapping   as vectors.cuh says
// traffic   3 vectors
// races     none: out may be x or y
template <class Y, class A, class B>
__global__ __launch_bounds__(THREADS) void vectors_combine(const Shape shape, const A* a, const Y* x, const B* b, const Y* y,
                                                           Y* out) {
    if (!shape.has_column()) return;
    const int64 j = shape.column();
    const A left = a[j];
    const B right = b[j];
    const bool has_x = !is_zero(left), has_y = !is_zero(right);
#pragma unroll 4
    for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
        const int64 at = row * shape.k + j;
        Y sum{};
        if (has_y) sum = plus(sum, right, y[at]);
        if (has_x) sum = plus(sum, left, x[at]);
        out[at] = sum;
    }
}

// vectors_blocks: out = M x for a block-diagonal M, whose blocks (n_blocks, size, size) may have numbers of another type
//
// mapping   as vectors.cuh says; a thread has one entry of out, and a row of its block
// traffic   the blocks, and 2 vectors: rows of a block find each other's in L1
// requires  out is not x
template <class A, class Y>
__global__ __launch_bounds__(THREADS) void vectors_blocks(const Shape shape, const A* __restrict__ blocks, int size,
                                                          const Y* __restrict__ x, Y* __restrict__ out) {
    if (!shape.has_column()) return;
    const int64 j = shape.column();
    for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
        const int64 begin = row / size * size;
        const int count = (int)min((int64)size, shape.n - begin);
        Y sum{};
#pragma unroll 4
        for (int i = 0; i < count; ++i)
            sum = mac(Widen<Y, A>::from(cached(blocks + row * size + i)), x[(begin + i) * shape.k + j], sum);
        out[row * shape.k + j] = sum;
    }
}
