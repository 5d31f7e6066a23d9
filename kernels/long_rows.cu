// y = alpha * A @ x + beta * y for long rows in small matrices: see gpu/long_rows.py.

#include "values.cuh"
#include "cvr.cuh"
#include "cvr_product.cuh"

// A part of a row, its nonzeros side by side. Parts of a row follow each other; a row without nonzeros has one.
struct Part {
    int begin;    // of its nonzeros
    int length;   // at most THREADS * E
    int row;
    int first;    // the number of the row's first part
    int n_parts;  // of the row
    int pad;
    int64 base;  // what is added to its columns
};

// long_rows_matvec: a thread block a part
//
// mapping   E nonzeros a thread, neighbouring threads side by side: in long rows these share sectors of x. All columns and
//           values are loaded before the first is used, then all entries of x
// traffic   nonzero: sizeof(A) + sizeof(C) bytes, and x; part: 32 bytes and its sum; row: sizeof(Y)
// races     none: a row with one part has one owner, and of others the last part to finish adds up the sums of all, in
//           their order (Cuts)
template <class A, class Y, class C, int E, int THREADS, bool KEEPS>
__global__ __launch_bounds__(THREADS) void long_rows_matvec(const Part* __restrict__ parts, const A* __restrict__ val,
                                                            const C* __restrict__ col, const Y* __restrict__ x, Y* y,
                                                            const Cuts<Y> cuts, Scalar<Y> alpha, Scalar<Y> beta, int update) {
    __shared__ Y of_warp[THREADS / WARP];
    const Part p = parts[blockIdx.x];
    const C* const columns = col + p.begin;
    const A* const values = val + p.begin;
    C c[E];
    A v[E];
    const Y* const near = x + p.base;
    Y xs[E], sum{};
#pragma unroll
    for (int e = 0; e < E; ++e) {
        const int at = e * THREADS + threadIdx.x;
        c[e] = at < p.length ? once<KEEPS>(columns + at) : C(0);
    }
#pragma unroll
    for (int e = 0; e < E; ++e) {
        const int at = e * THREADS + threadIdx.x;
        v[e] = at < p.length ? once<KEEPS>(values + at) : A{};
    }
    __syncwarp();  // keeps loads where they stand
#pragma unroll
    for (int e = 0; e < E; ++e) xs[e] = cached(near + c[e]);
#pragma unroll
    for (int e = 0; e < E; ++e)
        if (e * THREADS + (int)threadIdx.x < p.length) sum = mac(Widen<Y, A>::from(v[e]), xs[e], sum);
    const int lane = lane_id(), warp = threadIdx.x / WARP;
    sum = warp_sum(sum);
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();
    if (warp) return;
    sum = warp_sum(lane < THREADS / WARP ? of_warp[lane] : Y{});
    if (p.n_parts > 1) {
        bool is_last = false;
        if (lane == 0) {
            cuts.leave(2 * blockIdx.x + ((int)blockIdx.x == p.first), sum);
            is_last = atomicInc(cuts.arrived + p.first, p.n_parts - 1) == p.n_parts - 1;  // the last one makes it 0 again
        }
        if (!__any_sync(FULL, is_last)) return;
        sum = warp_sum(cuts.template share<Cuts<Y>::AT_ONCE>(p.first, p.first + p.n_parts));
    }
    if (lane == 0) store(y + p.row, sum, alpha, beta, update);
}

// long_rows_fill: all parts, and columns from the first of a part on
//
// `first` (n_rows + 1,): the parts at which rows begin; a row without nonzeros has one. `narrow` null: columns stay as they are.
// `found` becomes 1 where some take more than 16 bits
//
// mapping   a thread block a part
// traffic   sizeof(I) bytes a nonzero read, 2 written
// races     all that write `found` write the same
template <class I>
__global__ void long_rows_fill(const int64* first, const int64* ptr, int64 n_rows, const I* __restrict__ col, Part* parts,
                               uint16* __restrict__ narrow, int64* found) {
    const int64 part = blockIdx.x, row = lower_bound(first, n_rows + 1, part + 1) - 1;
    const int64 before = first[row], n_parts = first[row + 1] - before, length = ptr[row + 1] - ptr[row];
    const int64 begin = length * (part - before) / n_parts, end = length * (part - before + 1) / n_parts;
    const I* const own = col + ptr[row] + begin;
    const int64 base = narrow && begin < end ? own[0] : 0;
    if (threadIdx.x == 0) {
        parts[part] = {(int)(ptr[row] + begin), (int)(end - begin), (int)row, (int)before, (int)n_parts, 0, base};
        if (narrow && begin < end && own[end - begin - 1] - base >= NARROW) *found = 1;
    }
    if (narrow)
        for (int64 k = threadIdx.x; k < end - begin; k += blockDim.x) narrow[ptr[row] + begin + k] = (uint16)(own[k] - base);
}
