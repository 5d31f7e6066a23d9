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
    constexpr int MOST_EMPTY = 64, U = 4;
    int64 low[2] = {0, 0}, high[2] = {0, 0};
    bool unsorted = false, sparse = false;
    const int64 stride = (int64)gridDim.x * blockDim.x;
    for (int64 first = blockIdx.x * (int64)blockDim.x + threadIdx.x; first < n; first += U * stride) {
        int64 place[U][2], before[U][2];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 k = min(first + u * stride, n - 1), left = max(k - 1, (int64)0);
            place[u][0] = row[k];
            place[u][1] = col[k];
            before[u][0] = k ? (int64)row[left] : -1;
            before[u][1] = k ? (int64)col[left] : -1;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 k = first + u * stride;
            if (k >= n) break;
            unsorted |= k && (place[u][0] < before[u][0] || (place[u][0] == before[u][0] && place[u][1] <= before[u][1]));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                low[i] = min(low[i], place[u][i]);
                high[i] = max(high[i], place[u][i]);
            }
            if (!indptr || unsorted) continue;  // offsets mean nothing then
            auto begin_rows = [&](int64 from, int64 to, int64 offset) {
                if (from < 0 || to > n_rows) return;
                if (to - from > MOST_EMPTY) sparse = true;
                for (int64 r = from; r <= to && !sparse; ++r) indptr[r] = offset;
            };
            begin_rows(before[u][0] + 1, place[u][0], k);
            if (k == n - 1) begin_rows(place[u][0] + 1, n_rows, n);
        }
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
