// Canonical CSR: what conversions rely on is checked here, before any of them runs.

#include "csr.cuh"

// csr_check_rows: does indptr run from 0 to nnz without ever decreasing?
//
// mapping   one thread a row
// traffic   sizeof(P) bytes a row
// requires  indptr has n_rows + 1 entries
// races     none: an atomic maximum of integers
template <class P>
__global__ void csr_check_rows(const P* indptr, int64 n_rows, int64* status) {
    const int64 row = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (row == 0) {
        status[FIRST] = indptr[0];
        status[LAST] = indptr[n_rows];
    }
    if (row < n_rows && indptr[row] > indptr[row + 1]) atomicMax(status + BAD_ROW, MAX - row);
}

// csr_check_columns: do all columns lie in range, and do they strictly increase in every row?
//
// mapping   one warp for PART nonzeros, which first marks in shared memory where rows begin among them
// traffic   sizeof(I) bytes a nonzero, sizeof(P) bytes a row
// requires  the row offsets are right; the kernel ends at once where csr_check_rows found that they are not
// races     none: marks are set by an atomic OR between barriers; status words are an atomic maximum and a flag
template <class P, class I, int PART>
__global__ void csr_check_columns(const P* indptr, const I* indices, int64 n_rows, int64 n_cols, int64 nnz, int64* status) {
    if (!offsets_are_right(status, nnz)) return;
    extern __shared__ unsigned all_marks[];  // one bit for each nonzero: a row begins there
    unsigned* begins = all_marks + threadIdx.x / WARP * (PART / WARP);
    const int lane = lane_id();
    const int64 begin = warp_id() * PART;
    if (begin >= nnz) return;
    const int count = (int)min((int64)PART, nnz - begin);
    for (int word = lane; word < PART / WARP; word += WARP) begins[word] = 0;
    __syncwarp();
    for (int64 row = lower_bound(indptr, n_rows, begin) + lane; row < n_rows && indptr[row] < begin + count; row += WARP) {
        const int at = (int)(indptr[row] - begin);
        atomicOr(begins + at / WARP, 1u << at % WARP);
    }
    __syncwarp();
    // as an unsigned number a negative column is too large as well
    const uint64 limit = (uint64)n_cols;
    int first_bad = PART;
    bool unsorted = false;
    I last = begin ? indices[begin - 1] : I(-1);  // the column before the group
    indices += begin;
    constexpr int RUN = 4, RUNS = 4;  // columns that a thread loads at once and compares; such loads in flight
    struct alignas(16) Run {
        I col[RUN];
    };
    const bool aligned = (uint64)indices % 16 == 0;
    for (int group = 0; group < count; group += RUNS * RUN * WARP) {
        Run run[RUNS];
#pragma unroll
        for (int g = 0; g < RUNS; ++g) {
            const int first = group + (g * WARP + lane) * RUN;
            if (aligned && first + RUN <= count) {
                run[g] = *reinterpret_cast<const Run*>(indices + first);
            } else {
#pragma unroll
                for (int j = 0; j < RUN; ++j) run[g].col[j] = first + j < count ? indices[first + j] : I(0);
            }
        }
#pragma unroll
        for (int g = 0; g < RUNS; ++g) {
            const int first = group + (g * WARP + lane) * RUN;
            I before = shuffle(run[g].col[RUN - 1], (lane - 1) & (WARP - 1));
            if (lane == 0) before = last;
            last = shuffle(run[g].col[RUN - 1], WARP - 1);
            const unsigned begin_bits = first < count ? begins[first / WARP] >> first % WARP : 0;
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                const I col = run[g].col[j];
                if (first + j < count) {
                    if ((uint64)(int64)col >= limit) first_bad = min(first_bad, first + j);
                    unsorted |= before >= col && !(begin_bits >> j & 1);
                }
                before = col;
            }
        }
    }
    const int64 bad = first_bad < PART ? MAX - (begin + first_bad) : 0;
    if (bad) atomicMax(status + BAD_POSITION, bad);
    if (__any_sync(FULL, unsorted) && lane == 0) status[UNSORTED] = 1;
}

// csr_extent: the smallest and the largest row and column of coordinates, and 0 among them; found[4] = 1 where some place
// does not come after the one before it, by row, then column
//
// mapping   threads stride over the coordinates
// traffic   sizeof(R) + sizeof(C) bytes a coordinate; the one before comes from L1
// requires  found (5,) is zeroed by the host
// races     minima and maxima of integers, taken atomically, once a warp; and a flag: whoever writes it writes 1
template <class R, class C>
__global__ void csr_extent(const R* row, const C* col, int64 n, int64* found) {
    int64 low[2] = {0, 0}, high[2] = {0, 0};
    bool unsorted = false;
    for (int64 k = blockIdx.x * (int64)blockDim.x + threadIdx.x; k < n; k += (int64)gridDim.x * blockDim.x) {
        const int64 place[2] = {row[k], col[k]}, before[2] = {k ? row[k - 1] : -1, k ? col[k - 1] : -1};
        unsorted |= k && (place[0] < before[0] || (place[0] == before[0] && place[1] <= before[1]));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            low[i] = min(low[i], place[i]);
            high[i] = max(high[i], place[i]);
        }
    }
    for (int i = 0; i < 2; ++i) {
        low[i] = warp_min(low[i]);
        high[i] = warp_max(high[i]);
        if (lane_id() == 0 && low[i]) atomicMin(found + 2 * i, low[i]);
        if (lane_id() == 0 && high[i]) atomicMax(found + 2 * i + 1, high[i]);
    }
    if (__any_sync(FULL, unsorted) && lane_id() == 0) found[4] = 1;
}

// csr_row_lengths: found[0] += WARP times the longest row of each WARP rows, found[1] += empty rows;
// found[2] = MAX - the shortest row, found[3] = the longest
//
// mapping   one thread a row, one warp for the rows that are padded together
// traffic   sizeof(P) bytes a row
// requires  indptr does not decrease; found is zeroed by the host
// races     sums and maxima of integers, taken atomically, once a block
template <class P>
__global__ void csr_row_lengths(const P* indptr, int64 n_rows, uint64* found) {
    const int64 row = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    const int64 length = row < n_rows ? indptr[row + 1] - indptr[row] : 0;
    const int64 longest = warp_max(length), shortest = warp_min(row < n_rows ? length : MAX);
    const int64 empty = __popc(__ballot_sync(FULL, row < n_rows && length == 0));
    __shared__ int64 most, beyond_least;
    if (threadIdx.x == 0) most = beyond_least = 0;
    add_to_totals<2>({WARP * longest, empty}, found);  // all threads wait in it
    if (lane_id() == 0) {
        atomicMax(&most, longest);
        atomicMax(&beyond_least, MAX - shortest);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicMax(found + 2, (uint64)beyond_least);
        atomicMax(found + 3, (uint64)most);
    }
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
