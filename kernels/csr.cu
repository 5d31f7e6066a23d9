// Coordinates and CSRs that are not canonical: what they need before a conversion. csr_look.cu checks those that are.

// csr_extent: the smallest and the largest row and column of coordinates, and 0 among them; found[4] = 1 where some place
// does not come after the one before it, by row, then column. Where all do, indptr gets the offsets of their CSR, unless
// found[5] = 1: too many rows are empty one after the other
//
// mapping   threads stride over the coordinates; each writes the offsets of rows that begin at its own, or are empty before
// traffic   sizeof(R) + sizeof(C) bytes a coordinate, the one before comes from L1; 8 bytes a row
// requires  found (6,) is zeroed by the host; indptr (n_rows + 1,), or null; one coordinate at least
// races     minima and maxima of integers, taken atomically, once a warp; and flags: whoever writes one writes 1. Of rows that
//           ascend each has one writer
template <class R, class C>
__global__ void csr_extent(const R* row, const C* col, int64 n, int64 n_rows, int64* indptr, int64* found) {
    constexpr int MOST_EMPTY = 64;
    int64 low[2] = {0, 0}, high[2] = {0, 0};
    bool unsorted = false, sparse = false;
    for (int64 k = blockIdx.x * (int64)blockDim.x + threadIdx.x; k < n; k += (int64)gridDim.x * blockDim.x) {
        const int64 place[2] = {row[k], col[k]}, before[2] = {k ? row[k - 1] : -1, k ? col[k - 1] : -1};
        unsorted |= k && (place[0] < before[0] || (place[0] == before[0] && place[1] <= before[1]));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            low[i] = min(low[i], place[i]);
            high[i] = max(high[i], place[i]);
        }
        if (!indptr || unsorted) continue;  // offsets mean nothing then
        auto begin_rows = [&](int64 from, int64 to, int64 offset) {
            if (from < 0 || to > n_rows) return;
            if (to - from > MOST_EMPTY) sparse = true;
            for (int64 r = from; r <= to && !sparse; ++r) indptr[r] = offset;
        };
        begin_rows(before[0] + 1, place[0], k);
        if (k == n - 1) begin_rows(place[0] + 1, n_rows, n);
    }
    for (int i = 0; i < 2; ++i) {
        low[i] = warp_min(low[i]);
        high[i] = warp_max(high[i]);
        if (lane_id() == 0 && low[i]) atomicMin(found + 2 * i, low[i]);
        if (lane_id() == 0 && high[i]) atomicMax(found + 2 * i + 1, high[i]);
    }
    if (__any_sync(FULL, unsorted) && lane_id() == 0) found[4] = 1;
    if (__any_sync(FULL, sparse) && lane_id() == 0) found[5] = 1;
}

// csr_sum_runs: out[i] = the sum of val[order[first[i]]] .. val[order[first[i + 1] - 1]], in that order. float16 is
// summed in float.
//
// mapping   one thread a run
// races     none: each sum has one owner, which adds its terms in order
template <class A>
__global__ void csr_sum_runs(const A* val, const int64* order, const int64* first, int64 n_runs, A* out) {
    const int64 run = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (run >= n_runs) return;
    typedef typename Summed<A>::Type Sum;
    Sum sum = val[order[first[run]]];
    for (int64 i = first[run] + 1; i < first[run + 1]; ++i) sum = add(sum, Sum(val[order[i]]));
    out[run] = Summed<A>::rounded(sum);
}
