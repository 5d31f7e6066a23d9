// GMRES: how a vector joins an orthonormal basis, for any number of columns. Two passes of classical Gram-Schmidt:
//
//     h = V^H w;  w -= V h      gmres_sums, gmres_remove      twice
//     the next v = w / |w|      gmres_next
//
// The basis is (count, n, k). H is a column of the Hessenberg matrix, (count + 1, k): the sums of both h, and |w|.

#include "vectors.cuh"
#include "cg.cuh"
#include "scalars.cuh"

constexpr int AT_ONCE = 4;  // basis vectors that a block of gmres_sums has: they share w

// gmres_sums: h, and H = h in the `first` pass, H += h in the second
//
// mapping   as vectors.cuh says; a block has AT_ONCE basis vectors, those of blockIdx.z
// traffic   the basis, and w for each AT_ONCE of it
template <class Y>
__global__ __launch_bounds__(THREADS) void gmres_sums(const Shape shape, const Partials partials, int64 count,
                                                      const Y* __restrict__ basis, const Y* __restrict__ w, complex128* h,
                                                      complex128* H, bool first) {
    const int64 j = shape.column(), i = blockIdx.z * AT_ONCE, apart = shape.n * shape.k;
    double sums[2 * AT_ONCE] = {};
    if (shape.has_column())
        for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
            const int64 at = row * shape.k + j;
            const Y entry = w[at];
            Y v[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) v[u] = i + u < count ? basis[(i + u) * apart + at] : Y{};
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                double product[2] = {sums[2 * u], sums[2 * u + 1]};
                add_product(product, v[u], entry);
                sums[2 * u] = product[0], sums[2 * u + 1] = product[1];
            }
        }
    const int64 tile = blockIdx.z * gridDim.y * (int64)gridDim.x * 2 * AT_ONCE * shape.columns;
    if (!grid_sums(shape, Partials{partials.sums + tile, partials.arrived + blockIdx.z * gridDim.y}, sums)) return;
    for (int u = 0; u < AT_ONCE && i + u < count; ++u) {
        const complex128 sum = {sums[2 * u], sums[2 * u + 1]};
        complex128& sum_of_both = H[(i + u) * shape.k + j];
        h[(i + u) * shape.k + j] = sum;
        sum_of_both = first ? sum : add(sum_of_both, sum);
    }
}

// gmres_remove: w -= V h; in the LAST pass |w| too, which is H's last entry
//
// traffic   2 vectors, and one for each basis vector
template <class Y, bool LAST>
__global__ __launch_bounds__(THREADS) void gmres_remove(const Shape shape, const Partials partials, int64 count,
                                                        const Y* __restrict__ basis, const complex128* __restrict__ h,
                                                        Y* __restrict__ w, complex128* H) {
    const int64 j = shape.column(), apart = shape.n * shape.k;
    double sums[1] = {};
    if (shape.has_column())
        for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
            const int64 at = row * shape.k + j;
            Y entry = w[at];
#pragma unroll 4
            for (int64 i = 0; i < count; ++i) entry = plus(entry, negative(h[i * shape.k + j]), basis[i * apart + at]);
            w[at] = entry;
            sums[0] += dot(entry, entry);
        }
    if (!LAST || !grid_sums(shape, partials, sums)) return;
    H[count * shape.k + j] = {sqrt(sums[0]), 0};
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
