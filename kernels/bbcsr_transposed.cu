// y = alpha * A.T @ x + beta * y for BBCSR: see transposed.cuh for how sums come out the same in every run.

#include "bbcsr.cuh"
#include "transposed.cuh"

// bbcsr_transposed: one pass over all bins
//
// mapping   one warp a bin, one thread a row; warps stride over the bins
// traffic   slot: sizeof(A) + (2 or sizeof(I)) / B bytes, with holes sizeof(M) / B more, and 8 LIMBS / B added to a column
// requires  blocks of a row before its padding (invariant 3); padding and holes are never multiplied
// races     integer atomics, whose order does not show
//
// Rows of a block row meet in the same columns: their terms are added first, in the order of the lanes, by the first of them.
template <class A, class Y, class I, class M, int B, bool HOLES, int PASS, class C>
__device__ void scatter_bin(const Bbcsr<A, I, M>& m, const C* col, I base, int64 first, int n_blocks, int64 row, Y x,
                            const Sums<Y>& sums, int unit, int payload) {
    constexpr int U = B == 1 ? 4 : 1;
    const int lane = lane_id(), within = (int)(row % B);
    const A* data = m.data + first + lane;
    const M* present = HOLES ? m.present + first / B + lane : nullptr;
    col += lane;
    for (int block = 0; block < n_blocks; block += U) {
        C c[U];
        M bits[U];
        A v[U][B];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = block + u < n_blocks;
            c[u] = here ? stream(col + (int64)(block + u) * WARP) : C(-1);
            if (HOLES) bits[u] = here ? stream(present + (int64)(block + u) * WARP) : M(0);
#pragma unroll
            for (int j = 0; j < B; ++j) v[u][j] = here ? stream(data + ((int64)(block + u) * B + j) * WARP) : A{};
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = !is_padding<I>(c[u], 0);
#pragma unroll
            for (int j = 0; j < B; ++j) {
                const bool entry = here && (!HOLES || (bits[u] >> j & 1));
                const int64 to = ((int64)base + c[u]) * B + j;
                Y term = entry ? mac(Widen<Y, A>::from(v[u][j]), x, Y{}) : Y{};
                if (PASS == COUNT) {
                    if (entry) sums.template put<COUNT>(to, term, unit, payload);
                    continue;
                }
                const Y own = term;
#pragma unroll
                for (int i = 1; i < B; ++i) {
                    const Y other = shuffle(own, (lane + i) & (WARP - 1));
                    if (within + i < B && lane + i < WARP) term = add(term, other);
                }
                if (here && (within == 0 || lane == 0)) sums.template put<PASS>(to, term, unit, payload);
            }
        }
    }
}

template <class A, class Y, class I, class M, int B, bool HOLES, int PASS>
__global__ void bbcsr_transposed(const Bbcsr<A, I, M> m, const Y* __restrict__ x, Sums<Y> sums) {
    if ((PASS == EXPONENT || PASS == REFINE) && !sums.call->n_coarse) return;
    int unit = 0, payload = 0;
    if constexpr (!Real<typename Sums<Y>::Part>::EXACT) {
        if (PASS == ADD) unit = sums.unit();
        if (PASS != COUNT) payload = sums.payload();
    }
    const int64 n_warps = gridDim.x * (int64)blockDim.x / WARP;
    for (int64 bin = warp_id(); bin < m.n_bins; bin += n_warps) {
        const int64 row = bin * WARP + lane_id();
        const int64 first = m.bin_rowptr[bin], start = m.col_ptr[bin];
        const int n_blocks = (int)((m.bin_rowptr[bin + 1] - first) / (WARP * B));
        const I base = m.col_base[bin];
        const Y own = PASS != COUNT && row < m.n_rows ? x[row] : Y{};
        if (base >= 0)
            scatter_bin<A, Y, I, M, B, HOLES, PASS>(m, m.col_narrow + start, base, first, n_blocks, row, own, sums, unit, payload);
        else
            scatter_bin<A, Y, I, M, B, HOLES, PASS>(m, m.col_wide + start, I(0), first, n_blocks, row, own, sums, unit, payload);
    }
}
