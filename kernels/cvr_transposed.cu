// y = alpha * A.T @ x + beta * y for CVR: see transposed.cuh for how sums come out the same in every run.

#include "cvr.cuh"
#include "transposed.cuh"

// cvr_transposed: one pass over all chunks
//
// mapping   one warp a chunk, one thread a lane; warps stride over the chunks and walk each one's steps backwards, for a slot
//           belongs to the next record in its lane
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes, and 8 LIMBS added to a column; row: sizeof(I) + sizeof(Y)
// requires  pads follow a lane's last record (invariant 6), so that they are known by having no row
// races     integer atomics, whose order does not show
template <class A, class Y, class I, int L, int PASS, class C>
__device__ void scatter_chunk(const Cvr<A, I>& m, int64 chunk, const C* col, I base, const Y* x, const Sums<Y>& sums, int unit,
                              int payload, const Filter& filter) {
    constexpr int U = 4;
    const int lane = lane_id();
    const bool active = L == WARP || lane < L;
    const unsigned below = (1u << lane) - 1;
    const int64 first = m.step_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const int slot = active ? lane : 0;
    const A* val = m.val + first * L + slot;
    col += slot;
    const uint32* mask = m.rec_mask + first;
    const I* wb = m.rec_wb + m.rec_ptr[chunk + 1];
    const I tail = active ? m.tail[chunk * L + lane] : I(-1);

    if (PASS == EXPONENT || PASS == REFINE) {  // most chunks have no coarse column
        bool any = false;
        for (int step = 0; step < n_steps; ++step) any |= active && sums.is_coarse((int64)base + col[(int64)step * L], filter);
        if (!__any_sync(FULL, any)) return;
    }
    Y own{};           // x of the row that the lane works on
    bool pad = true;
    for (int end = n_steps; end > 0; end -= U) {
        C c[U];
        A v[U];
        unsigned records[U];
        I target[U];
        Y xs[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int step = max(end - 1 - u, 0);
            records[u] = end - 1 - u >= 0 ? mask[step] : 0;
            c[u] = stream(col + (int64)step * L);
            v[u] = stream(val + (int64)step * L);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            wb -= __popc(records[u]);
            target[u] = records[u] >> lane & 1 ? wb[__popc(records[u] & below)] : I(0);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const I of_entry = shuffle(tail, target[u] < 0 ? (int)~target[u] : lane);
            const I row = target[u] < 0 ? of_entry : target[u];
            xs[u] = PASS != COUNT && records[u] >> lane & 1 ? cached(x + row) : Y{};
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (records[u] >> lane & 1) {
                own = xs[u];
                pad = false;
            }
            if (end - 1 - u < 0) break;
            sums.template put<PASS>(active && !pad, (int64)base + c[u], mac(Widen<Y, A>::from(v[u]), own, Y{}), unit, payload,
                                    filter);
        }
    }
}

template <class A, class Y, class I, int L, int PASS>
__global__ void cvr_transposed(const Cvr<A, I> m, const Y* __restrict__ x, Sums<Y> sums) {
    if ((PASS == EXPONENT || PASS == REFINE) && !sums.call->n_coarse) return;
    __shared__ Filter filter;
    if (PASS == EXPONENT || PASS == REFINE) filter.build(*sums.call);
    int unit = 0, payload = 0;
    if constexpr (!Real<typename Sums<Y>::Part>::EXACT) {
        if (PASS == ADD) unit = sums.unit();
        if (PASS != COUNT) payload = sums.payload();
    }
    const int64 n_warps = gridDim.x * (int64)blockDim.x / WARP;
    for (int64 chunk = warp_id(); chunk < m.n_chunks; chunk += n_warps) {
        const I base = m.col_base[chunk];
        const int64 start = m.col_ptr[chunk];
        if (base >= 0)
            scatter_chunk<A, Y, I, L, PASS>(m, chunk, m.col_narrow + start, base, x, sums, unit, payload, filter);
        else
            scatter_chunk<A, Y, I, L, PASS>(m, chunk, m.col_wide + start, I(0), x, sums, unit, payload, filter);
    }
}
