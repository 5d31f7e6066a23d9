// y = alpha * A @ x + beta * y for BBCSR.

#include "values.cuh"
#include "bbcsr.cuh"
#include "bbcsr_product.cuh"

// the share of warp `part` of a row's sum
template <class READ, class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S>
__device__ Y share_of_row(const Bbcsr<A, I, M>& m, const Bin<A, I, M, B, HOLES>& own, int part, const Y* x) {
    return own.is_narrow()
        ? row_sum<READ, A, Y, I, M, B, U_NARROW, HOLES, S>(own.narrow(m), own.data, own.present, own.n_blocks, part,
                                                           x + own.origin())
        : row_sum<READ, A, Y, I, M, B, U_WIDE, HOLES, S>(own.wide(m), own.data, own.present, own.n_blocks, part, x);
}

// bbcsr_matvec: all bins
//
// mapping   S warps of one thread block a bin, one thread of each a row: of the row's groups of U blocks, warp p of the
//           S takes groups p, p + S, ... Few bins alone would not keep the device busy, and a long row would take long
// traffic   slot: sizeof(A) + (2 or sizeof(I)) / B bytes, with holes sizeof(M) / B more; and x; row: sizeof(Y)
// requires  blocks of a row before its padding (invariant 3); padding and holes are never multiplied
// races     none: S threads own a row; their parts are added in the order of the warps
//
// U blocks are loaded before the first is used; AT_ONCE: by a warp that waits for their values and x once. `backwards`: the last
// bins come first. L2 keeps the tables of the first and of the last `n_kept` bins; KEPT says whether that is none or all.
enum Kept { NONE, ENDS, ALL };
template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S, int THREADS, int KEPT,
          bool AT_ONCE>
__global__ __launch_bounds__(THREADS) void bbcsr_matvec(const Bbcsr<A, I, M> m, const Y* __restrict__ x, Y* __restrict__ y,
                                                        Scalar<Y> alpha, Scalar<Y> beta, int update, int backwards, int64 n_kept) {
    const int part = S == 1 ? 0 : threadIdx.x / WARP % S;
    constexpr int BINS = THREADS / (WARP * S);  // of a thread block
    const int n_blocks = (int)((m.n_bins + BINS - 1) / BINS), block = block_number(n_blocks);
    if (block >= n_blocks) return;
    const int64 bin = (backwards ? n_blocks - 1 - block : block) * (int64)BINS + threadIdx.x / (WARP * S);
    const Opened<A>& values = m.data.opened();
    Y sum{};
    if (bin < m.n_bins) {
        const Bin<A, I, M, B, HOLES> own(m, values, bin, 0);
        sum = KEPT == ALL || (KEPT == ENDS && (bin < n_kept || bin >= m.n_bins - n_kept))
            ? share_of_row<ReadOnce<true, AT_ONCE>, A, Y, I, M, B, U_NARROW, U_WIDE, HOLES, S>(m, own, part, x)
            : share_of_row<ReadOnce<false, AT_ONCE>, A, Y, I, M, B, U_NARROW, U_WIDE, HOLES, S>(m, own, part, x);
    }
    if constexpr (S > 1) {
        __shared__ Y sums[THREADS];  // no more than that: shared memory is taken from L1, which holds x
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (part == 0)
            for (int p = 1; p < S; ++p) sum = add(sum, sums[threadIdx.x + p * WARP]);
    }
    const int64 row = bin * WARP + lane_id();
    if (part == 0 && row < m.n_rows) store(y + row, sum, alpha, beta, update);
}
