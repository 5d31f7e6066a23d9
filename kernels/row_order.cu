// y = alpha * A @ x + beta * y for CVR's nonzeros row by row: see gpu/row_order.py.

#include "values.cuh"
#include "cvr.cuh"
#include "cvr_product.cuh"

// The nonzeros row by row, THREADS * E slots a part. Rows that begin in a part follow each other there; only a row of
// many nonzeros goes on in the next one. What is left of a part are pads.
//
// A thread has E neighbouring slots to add up; it loads others, so that neighbouring threads load neighbouring slots.
template <class A, class C, class I>
struct RowOrder {
    Values<A> val;
    const C* col;       // from the part's base
    const uint8* ends;  // a thread's: bit e says that its slot e is the last of a row
    const int64* base;  // a part's
    const int* rank;    // of a warp's first row to end among the rows that are not empty
    const I* row;       // by rank; null: there are no empty rows
    const I* cut_row;   // (n_parts + 1,) the row that begins before a part and goes on in it; else -1
    const I* empty_row;
    int64 n_parts, n_empty;

    __device__ int64 row_of(int rank) const { return row ? (int64)row[rank] : rank; }
};

// row_order_matvec: a thread block a part; blocks beyond these store empty rows
//
// mapping   E nonzeros a thread. All columns and values are loaded before the first is used, then all entries of x.
//           Products go through shared memory to the thread that adds them up. A row that several threads have is added
//           in their order: lanes by a segmented scan, then warps, then parts (Cuts)
// traffic   slot: sizeof(A) + sizeof(C) + 1 / E bytes, and x; row: sizeof(Y)
// requires  pads come after the last row of a part, so their products are never stored
// races     none: a row has one owner, who adds what others have of it: of warps after a barrier, of parts once it is
//           marked as there
template <class A, class Y, class C, class I, int E, int THREADS>
__global__ __launch_bounds__(THREADS) void row_order_matvec(const RowOrder<A, C, I> m, const Y* __restrict__ x, Y* y,
                                                            const Cuts<Y> cuts, Y alpha, Y beta, int update) {
    constexpr int WARPS = THREADS / WARP, SLOTS = WARP * E, SKEW = WARP;  // one number to SKEW is left out: bank conflicts
    __shared__ Y products[WARPS][SLOTS + SLOTS / SKEW];
    __shared__ Y of_warp[WARPS];
    __shared__ bool has_end[WARPS];
    const Opened<A>& values = m.val.opened();
    const int lane = lane_id(), warp = threadIdx.x / WARP;
    const int64 part = blockIdx.x;
    if (part >= m.n_parts) {
        const int64 n_threads = (gridDim.x - m.n_parts) * THREADS;
#pragma unroll 1
        for (int64 i = (part - m.n_parts) * THREADS + threadIdx.x; i < m.n_empty; i += n_threads)
            store(y + m.empty_row[i], Y{}, alpha, beta, update);
        return;
    }
    const int64 first = (part * WARPS + warp) * SLOTS + lane;
    C c[E];
    Stored<A> v[E];
    Y xs[E];
#pragma unroll
    for (int e = 0; e < E; ++e) c[e] = stream(m.col + first + e * WARP);
    const int64 base = m.base[part];
#pragma unroll
    for (int e = 0; e < E; ++e) v[e] = stream(values.slot + first + e * WARP);
    const unsigned ends = m.ends[part * THREADS + threadIdx.x];
    const int rank = m.rank[part * WARPS + warp];
    const I before = m.cut_row[part], after = m.cut_row[part + 1];
    const int spans = warp == 0 && lane < 4 ? cuts.span[2 * part + lane] : -1;
    __syncwarp();  // keeps loads where they stand
#pragma unroll
    for (int e = 0; e < E; ++e) xs[e] = cached(x + base + c[e]);
    Y* const own = products[warp];
#pragma unroll
    for (int e = 0; e < E; ++e) own[e * (WARP + WARP / SKEW) + lane] = mac(values.template decoded<Y>(v[e]), xs[e], Y{});
    const unsigned below = (1u << lane) - 1, enders = __ballot_sync(FULL, ends != 0);
    int place = 0, n_ends = 0;  // of rows that end in the warp: the thread's first one, and all
#pragma unroll
    for (int e = 0; e < E; ++e) {
        const unsigned all = __ballot_sync(FULL, ends >> e & 1);
        place += __popc(all & below);
        n_ends += __popc(all);
    }
    __syncwarp();
    Y terms[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
        const int at = lane * E + e;
        terms[e] = own[at + at / SKEW];
    }
    __syncwarp();  // from here on `own` has the sums of rows that end in the warp
    Y sum{}, head{};  // after the last end; before the first one
    bool seen = false;
    int next = place;
#pragma unroll
    for (int e = 0; e < E; ++e) {
        sum = add(sum, terms[e]);
        if (ends >> e & 1) {
            if (seen)
                own[next] = sum;
            else
                head = sum;
            ++next;
            seen = true;
            sum = Y{};
        }
    }
    // sum: of all lanes from the last one that has an end on
    const unsigned upto = enders & (below << 1 | 1);
    const int reach = upto ? lane - (WARP - 1 - __clz(upto)) : lane;
#pragma unroll
    for (int apart = 1; apart < WARP; apart *= 2) {
        const Y other = shuffle(sum, max(lane - apart, 0));
        if (apart <= reach) sum = add(other, sum);
    }
    const Y of_lanes = shuffle(sum, max(lane - 1, 0));
    if (lane == WARP - 1) {
        of_warp[warp] = sum;
        has_end[warp] = enders != 0;
    }
    __syncthreads();
    Y of_warps{};         // before this one, from the last one that has an end on
    bool is_first = true; // no warp before has one
#pragma unroll 1
    for (int w = 0; w < warp; ++w) {
        of_warps = has_end[w] ? of_warp[w] : add(of_warps, of_warp[w]);
        is_first &= !has_end[w];
    }
    if (seen) {
        if (lane) head = add(of_lanes, head);
        if (!(enders & below)) head = add(of_warps, head);
        own[place] = head;
    }
    __syncwarp();
    const bool is_cut = before >= 0 && is_first;  // the warp's first row to end began before the part
#pragma unroll 1
    for (int i = lane; i < n_ends; i += WARP) {
        if (is_cut && i == 0)
            cuts.leave(2 * part, own[0]);
        else
            store(y + m.row_of(rank + i), own[i], alpha, beta, update);
    }
    if (after >= 0 && threadIdx.x == THREADS - 1)
        cuts.leave(2 * part + !(is_cut && !enders), enders ? sum : add(of_warps, sum));
    if (warp == 0 && (before >= 0 || after >= 0))
        cuts.template finish<Cuts<Y>::AT_ONCE>(part, spans, lane == 0 ? before : after, y, alpha, beta, update);
}
