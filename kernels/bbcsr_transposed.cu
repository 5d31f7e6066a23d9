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
// Rows of a block row meet in the same columns: their terms go through shared memory, JB columns of every block at a time, and
// one lane adds those of one column, row by row.
template <class A, class Y, class I, class M, int B, bool HOLES, int PASS, class C>
__device__ void scatter_bin(const Bbcsr<A, I, M>& m, const C* col, I base, int64 first, int n_blocks, int64 bin, Y x,
                            const Sums<Y>& sums, int unit, int payload, const Filter& filter, Y (*terms)[WARP]) {
    constexpr int U = B == 1 ? 4 : 1, JB = B < 8 ? B : 8;
    const int lane = lane_id();
    const A* data = m.data + first + lane;
    const M* present = HOLES ? m.present + first / B + lane : nullptr;
    col += lane;
    if (PASS == EXPONENT || PASS == REFINE) {  // most bins have no coarse column
        bool any = false;
        for (int block = 0; block < n_blocks; ++block) {
            const C stored = col[(int64)block * WARP];
            if (!is_padding<I>(stored, 0))
                for (int j = 0; j < B && ((int64)base + stored) * B + j < m.n_cols; ++j)
                    any |= sums.is_coarse(((int64)base + stored) * B + j, filter);
        }
        if (!__any_sync(FULL, any)) return;
    }
    // the bin's first block row begins `before` rows above the bin
    const int before = (int)(bin * WARP % B), n_groups = (before + WARP + B - 1) / B;
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
            auto entry = [&](int j) { return here && (!HOLES || (bits[u] >> j & 1)); };
            auto term = [&](int j) { return entry(j) ? mac(Widen<Y, A>::from(v[u][j]), x, Y{}) : Y{}; };
            if constexpr (B == 1 || PASS == COUNT) {
#pragma unroll
                for (int j = 0; j < B; ++j)
                    sums.template put<PASS>(entry(j), ((int64)base + c[u]) * B + j, term(j), unit, payload, filter);
            } else
#pragma unroll
                for (int begin = 0; begin < B; begin += JB) {
                    __syncwarp();
#pragma unroll
                    for (int j = 0; j < JB; ++j)
                        if (begin + j < B) terms[j][lane] = term(begin + j);
                    __syncwarp();
                    for (int i = 0; i < n_groups * JB; i += WARP) {
                        const int group = (i + lane) / JB, j = (i + lane) % JB, top = group * B - before;
                        const int from = min(max(top, 0), WARP - 1), to = min(top + B, WARP);
                        const C of_group = (C)__shfl_sync(FULL, c[u], from);
                        Y sum{};
                        for (int r = from; r < to; ++r) sum = add(sum, terms[j][r]);
                        const bool mine = group < n_groups && begin + j < B && !is_padding<I>(of_group, 0);
                        sums.template put<PASS>(mine, ((int64)base + of_group) * B + begin + j, sum, unit, payload, filter);
                    }
                }
        }
    }
}

template <class A, class Y, class I, class M, int B, bool HOLES, int PASS, int WARPS>
__global__ void bbcsr_transposed(const Bbcsr<A, I, M> m, const Y* __restrict__ x, Sums<Y> sums) {
    if ((PASS == EXPONENT || PASS == REFINE) && !sums.call->n_coarse) return;
    __shared__ Filter filter;
    __shared__ Y terms[WARPS][B == 1 || PASS == COUNT ? 1 : B < 8 ? B : 8][WARP];
    if (PASS == EXPONENT || PASS == REFINE) filter.build(*sums.call);
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
        auto* of_warp = terms[threadIdx.x / WARP];
        if (base >= 0)
            scatter_bin<A, Y, I, M, B, HOLES, PASS>(m, m.col_narrow + start, base, first, n_blocks, bin, own, sums, unit,
                                                    payload, filter, of_warp);
        else
            scatter_bin<A, Y, I, M, B, HOLES, PASS>(m, m.col_wide + start, I(0), first, n_blocks, bin, own, sums, unit, payload,
                                                    filter, of_warp);
    }
}
