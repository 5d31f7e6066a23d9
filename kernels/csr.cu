// Coordinates and CSRs that are not canonical: what they need before a conversion. csr_look.cu checks those that are.

// Adds what threads have found to the host's words, once a block: atomics on one address wait for each other. `own` has
// minima and maxima in turn. All threads of the block must call it.
__device__ inline void report(const int64 (&own)[4], bool unsorted, bool sparse, int64* found) {
    __shared__ int64 extremes[4];
    __shared__ int flags[2];
    if (threadIdx.x < 4) extremes[threadIdx.x] = 0;
    if (threadIdx.x < 2) flags[threadIdx.x] = 0;
    __syncthreads();
    const int64 of_warp[4] = {warp_min(own[0]), warp_max(own[1]), warp_min(own[2]), warp_max(own[3])};
    if (lane_id() == 0)
        for (int i = 0; i < 4; i += 2) {
            atomicMin(extremes + i, of_warp[i]);
            atomicMax(extremes + i + 1, of_warp[i + 1]);
        }
    if (unsorted) flags[0] = 1;
    if (sparse) flags[1] = 1;
    __syncthreads();
    if (threadIdx.x < 4 && extremes[threadIdx.x]) {
        if (threadIdx.x % 2)
            atomicMax(found + threadIdx.x, extremes[threadIdx.x]);
        else
            atomicMin(found + threadIdx.x, extremes[threadIdx.x]);
    }
    if (threadIdx.x < 2 && flags[threadIdx.x]) found[4 + threadIdx.x] = 1;
}

// csr_extent: the smallest and the largest row and column of coordinates, and 0 among them; found[4] = 1 where some place
// does not come after the one before it, by row, then column. Where all do, indptr gets the offsets of their CSR, unless
// found[5] = 1: too many rows are empty one after the other
//
// mapping   threads stride over the coordinates; each writes the offsets of rows that begin at its own, or are empty before
// traffic   sizeof(R) + sizeof(C) bytes a coordinate, the one before comes from L1; 8 bytes a row
// requires  found (6,) is zeroed by the host; indptr (n_rows + 1,), or null; one coordinate at least
// races     minima and maxima of integers, taken atomically, once a block; and flags: whoever writes one writes 1. Of rows that
//           ascend each has one writer
template <class R, class C>
__global__ void csr_extent(const R* row, const C* col, int64 n, int64 n_rows, int64* indptr, int64* found) {
    constexpr int MOST_EMPTY = 64, U = 4;
    // in their own types, as these take half the instructions of 64 bits where they have 32
    R low_row = 0, high_row = 0;
    C low_col = 0, high_col = 0;
    bool unsorted = false, sparse = false;
    const int64 stride = (int64)gridDim.x * blockDim.x;
    auto begin_rows = [&](int64 from, int64 to, int64 offset) {
        if (from < 0 || to > n_rows) return;
        if (to - from > MOST_EMPTY) sparse = true;
        for (int64 r = from; r <= to && !sparse; ++r) indptr[r] = offset;
    };
    for (int64 first = blockIdx.x * (int64)blockDim.x + threadIdx.x; first - lane_id() < n; first += U * stride) {
        R r[U], row_before[U];
        C c[U], col_before[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 k = min(first + u * stride, n - 1);
            r[u] = row[k];
            c[u] = col[k];
            row_before[u] = k ? row[k - 1] : R(-1);
            col_before[u] = k ? col[k - 1] : C(-1);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            unsorted |= r[u] < row_before[u] || (r[u] == row_before[u] && c[u] <= col_before[u]);
            low_row = min(low_row, r[u]);
            high_row = max(high_row, r[u]);
            low_col = min(low_col, c[u]);
            high_col = max(high_col, c[u]);
        }
        if (!indptr || __any_sync(FULL, unsorted)) continue;  // offsets mean nothing then
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 k = first + u * stride;
            if (k >= n) break;
            if (r[u] != row_before[u]) begin_rows((int64)row_before[u] + 1, r[u], k);
            if (k == n - 1) begin_rows((int64)r[u] + 1, n_rows, n);
        }
    }
    report({low_row, high_row, low_col, high_col}, unsorted, sparse, found);
}

// csr_places: place[i] = where the entry (row[i], col[i]) of a canonical CSR stands; -1: nowhere
//
// mapping   one thread an entry, which searches its row by halves
// races     none
template <class P, class I>
__global__ void csr_places(const P* indptr, const I* indices, const int64* row, const int64* col, int64 n, int64* place) {
    const int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64 begin = indptr[row[i]], end = indptr[row[i] + 1];
    const int64 at = begin + lower_bound(indices + begin, end - begin, col[i]);
    place[i] = at < end && indices[at] == col[i] ? at : -1;
}
