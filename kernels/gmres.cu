// GMRES: how a vector joins an orthonormal basis, for any number of columns, by classical Gram-Schmidt:
//
//     h = V^H w                               gmres_project
//     w -= V h;  g = V^H w;  |w|              gmres_project
//     w -= V g;  |w|, where g is not small    gmres_remove
//     the next v = w / |w|                    gmres_next
//
// g says how far w is from orthogonal. As a rule that is rounding, and the basis is read twice: "twice is enough" (W.
// Kahan, in B. N. Parlett, "The Symmetric Eigenvalue Problem", 1980, section 6-9), and once may be. A thread keeps its
// entries of up to MOST basis vectors from w -= V h to V^H w. Of more vectors, gmres_project for MOST at a time and
// gmres_remove do each half of a pass by itself, twice.
//
// The basis is (count, n, k). H is a column of the Hessenberg matrix, (count + 1, k): h, with g where that is removed, and
// |w|.

#include "vectors.cuh"
#include "cg.cuh"
#include "scalars.cuh"

// Sums of products, for real vectors without an imaginary part: how many numbers a product is, and adding one.
template <class Y>
struct Product {
    static constexpr int PARTS = 1;
    static __device__ void add(double* sum, Y x, Y y) { *sum = mac((double)x, (double)y, *sum); }
    static __device__ complex128 value(const double* sum) { return {*sum, 0}; }
};
template <class T>
struct Product<Complex<T>> {
    static constexpr int PARTS = 2;
    static __device__ void add(double* sum, Complex<T> x, Complex<T> y) {
        double both[2] = {sum[0], sum[1]};
        add_product(both, x, y);
        sum[0] = both[0], sum[1] = both[1];
    }
    static __device__ complex128 value(const double* sum) { return {sum[0], sum[1]}; }
};

constexpr double ENOUGH = 64;  // roundings that g may be, over |w|

// gmres_project: h = V^H w, which is H, or is added to H unless it is the `first`; where it REMOVEs, w -= V H before, and
// `again` says whether V h must be removed too: H takes h then, and |w| in any case
//
// mapping   as vectors.cuh says; a thread has an entry of all `count` basis vectors
// traffic   the basis, and w; where it REMOVEs w once more
// requires  count <= MOST
template <class Y, int MOST, bool REMOVE>
__global__ __launch_bounds__(THREADS, Product<Y>::PARTS == 1 ? 2 : 1) void gmres_project(
    const Shape shape, const Partials partials, int64 count, const Y* __restrict__ basis, Y* __restrict__ w, complex128* h,
    complex128* H, int64* again, bool first) {
    typedef Product<Y> Sum;
    const int64 j = shape.column(), apart = shape.n * shape.k;
    double sums[MOST * Sum::PARTS + 1] = {};
    double& square = sums[MOST * Sum::PARTS];
    if (shape.has_column())
        for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
            const int64 at = row * shape.k + j;
            Y entry = w[at], v[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i) v[i] = i < count ? basis[i * apart + at] : Y{};
            if (REMOVE) {
#pragma unroll
                for (int i = 0; i < MOST; ++i)
                    if (i < count) entry = plus(entry, negative(h[i * shape.k + j]), v[i]);
                w[at] = entry;
            }
#pragma unroll
            for (int i = 0; i < MOST; ++i) Sum::add(sums + i * Sum::PARTS, v[i], entry);
            square += dot(entry, entry);
        }
    if (!grid_sums(shape, partials, sums)) return;
    double left = 0;  // |g|^2
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        const complex128 sum = Sum::value(sums + i * Sum::PARTS);
        left += dot(sum, sum);
    }
    constexpr double ROUNDING = sizeof(Y) / Sum::PARTS == 4 ? 6e-8 : 1.1e-16;
    const bool is_small = left <= ENOUGH * ENOUGH * ROUNDING * ROUNDING * square;
#pragma unroll
    for (int i = 0; i < MOST; ++i)
        if (i < count) {
            const complex128 sum = Sum::value(sums + i * Sum::PARTS);
            complex128& entry = H[i * shape.k + j];
            h[i * shape.k + j] = sum;
            entry = first ? sum : REMOVE && is_small ? entry : add(entry, sum);
        }
    if (!REMOVE) return;
    again[j] = !is_small;
    H[count * shape.k + j] = {sqrt(square), 0};
}

// gmres_remove: w -= V h, of the columns that are to be removed from `again`, or of all; in the LAST pass |w| too, which is
// H's last entry
//
// traffic   2 vectors, and one for each basis vector
template <class Y, bool LAST>
__global__ __launch_bounds__(THREADS) void gmres_remove(const Shape shape, const Partials partials, int64 count,
                                                        const Y* __restrict__ basis, const complex128* __restrict__ h,
                                                        Y* __restrict__ w, complex128* H, const int64* again) {
    const int64 j = shape.column(), apart = shape.n * shape.k;
    const bool active = shape.has_column() && (!again || again[j]);
    if (!__syncthreads_or(active)) return;  // as all blocks of the tile
    double sums[1] = {};
    constexpr int U = 4;  // rows that share a factor
    if (active)
        for (int64 begin = shape.first_row(); begin < shape.n; begin += U * shape.stride()) {
            Y entry[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const int64 row = begin + u * shape.stride();
                entry[u] = row < shape.n ? w[row * shape.k + j] : Y{};
            }
#pragma unroll 2
            for (int64 i = 0; i < count; ++i) {
                const complex128 factor = negative(h[i * shape.k + j]);
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const int64 row = begin + u * shape.stride();
                    if (row < shape.n) entry[u] = plus(entry[u], factor, basis[i * apart + row * shape.k + j]);
                }
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const int64 row = begin + u * shape.stride();
                if (row < shape.n) w[row * shape.k + j] = entry[u];
                sums[0] += dot(entry[u], entry[u]);
            }
        }
    if (!LAST || !grid_sums(shape, partials, sums)) return;
    if (!again || again[j]) H[count * shape.k + j] = {sqrt(sums[0]), 0};
}

// gmres_next: v = w / |w|, 0 where that is 0 or no number
//
// traffic   2 vectors
template <class Y>
__global__ __launch_bounds__(THREADS) void gmres_next(const Shape shape, const complex128* length, const Y* __restrict__ w,
                                                      Y* __restrict__ v) {
    if (!shape.has_column()) return;
    const int64 j = shape.column();
    const double size = length[j].re;
    const bool is_usable = size > 0 && is_finite(size);
    const double scale = is_usable ? 1 / size : 0;
#pragma unroll 4
    for (int64 row = shape.first_row(); row < shape.n; row += shape.stride())
        v[row * shape.k + j] = is_usable ? plus(Y{}, scale, w[row * shape.k + j]) : Y{};
}

// gmres_add: x += V y, but where that is no number
//
// traffic   2 vectors, and the basis
template <class Y>
__global__ __launch_bounds__(THREADS) void gmres_add(const Shape shape, int64 count, const Y* __restrict__ basis,
                                                     const complex128* __restrict__ y, Y* __restrict__ x) {
    if (!shape.has_column()) return;
    const int64 j = shape.column(), apart = shape.n * shape.k;
    for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
        const int64 at = row * shape.k + j;
        Y change{};
#pragma unroll 8
        for (int64 i = 0; i < count; ++i) change = plus(change, y[i * shape.k + j], basis[i * apart + at]);
        if (is_finite(Widen<complex128, Y>::from(change))) x[at] = add(x[at], change);
    }
}
