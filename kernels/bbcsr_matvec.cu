// y = alpha * A @ x + beta * y for BBCSR.

#include "values.cuh"
#include "bbcsr.cuh"
#include "bbcsr_product.cuh"

// bbcsr_matvec: all bins
//
// mapping   S warps of one thread block a bin, one thread of each a row: of the row's groups of U blocks, warp p of the
//           S takes groups p, p + S, ... Few bins alone would not keep the device busy, and a long row would take long
// traffic   slot: sizeof(A) + (2 or sizeof(I)) / B bytes, with holes sizeof(M) / B more; and x; row: sizeof(Y)
// requires  blocks of a row before its padding (invariant 3); padding and holes are never multiplied
// races     none: S threads own a row; their parts are added in the order of the warps
//
// U blocks are loaded before the first is used.
__host__ __device__ constexpr int threads_of(int sharers) { return (sharers > 4 ? sharers : 4) * WARP; }

template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S>
__global__ __launch_bounds__(threads_of(S)) void bbcsr_matvec(const Bbcsr<A, I, M> m, const Y* __restrict__ x,
                                                              Y* __restrict__ y, Y alpha, Y beta, int update) {
    const int part = S == 1 ? 0 : threadIdx.x / WARP % S;
    const int64 bin = warp_id() / S;
    const Opened<A>& values = m.data.opened();
    Y sum{};
    if (bin < m.n_bins) {
        const Bin<A, I, M, B, HOLES> own(m, values, bin, 0);
        sum = own.is_narrow()
            ? row_sum<ReadOnce, A, Y, I, M, B, U_NARROW, HOLES, S>(own.narrow(m), own.data, own.present, own.n_blocks, part,
                                                                   x + own.origin())
            : row_sum<ReadOnce, A, Y, I, M, B, U_WIDE, HOLES, S>(own.wide(m), own.data, own.present, own.n_blocks, part, x);
    }
    if constexpr (S > 1) {
        __shared__ Y sums[threads_of(S)];  // no more than that: shared memory is taken from L1, which holds x
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (part == 0)
            for (int p = 1; p < S; ++p) sum = add(sum, sums[threadIdx.x + p * WARP]);
    }
    const int64 row = bin * WARP + lane_id();
    if (part == 0 && row < m.n_rows) store(y + row, sum, alpha, beta, update);
}
