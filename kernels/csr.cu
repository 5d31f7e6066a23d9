// Canonical CSR: what conversions rely on is checked here, before any of them runs.

// csr_check: is this a CSR, and is it canonical?
//
// mapping   one thread a nonzero and one a row, grid-strided
// traffic   sizeof(I) bytes a nonzero, sizeof(P) bytes a row
// requires  indptr has n_rows + 1 entries; whatever they are, nothing is read out of bounds
// races     maxima and counts are integers, taken atomically: the result does not depend on order
//
// status (zeroed by the host): [0] indptr[0], [1] indptr[n_rows], [2] MAX - the first row whose indptr decreases, [3] MAX - the
// first position of an index out of range (0: there is none), [4] the neighbours among all nonzeros that do not ascend, [5]
// those of them that are the last of one row and the first of another: the matrix is canonical when the two counts agree.
template <class P, class I>
__global__ void csr_check(const P* indptr, const I* indices, int64 n_rows, int64 n_cols, int64 nnz, int64* status) {
    constexpr int64 MAX = 0x7fffffffffffffffll;
    const int64 stride = gridDim.x * (int64)blockDim.x, thread = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    int64 falls = 0, falls_between_rows = 0, bad_row = 0, bad_position = 0;
#pragma unroll 4
    for (int64 warp_begin = thread - lane_id(); warp_begin < nnz; warp_begin += stride) {
        const int64 position = warp_begin + lane_id();
        const I col = position < nnz ? indices[position] : I(0);
        I before = __shfl_up_sync(FULL, col, 1);
        if (lane_id() == 0) before = position ? indices[position - 1] : I(-1);
        if (position >= nnz) continue;
        if (col < 0 || col >= n_cols) bad_position = max(bad_position, MAX - position);
        falls += position > 0 && before >= col;
    }
    for (int64 row = thread; row < n_rows; row += stride) {
        const int64 first = indptr[row], next = indptr[row + 1];
        if (first > next) bad_row = max(bad_row, MAX - row);
        if (first < next && 0 < first && first < nnz) falls_between_rows += indices[first - 1] >= indices[first];
    }
    if (thread == 0) {
        status[0] = indptr[0];
        status[1] = indptr[n_rows];
    }
    if (bad_row) atomicMax(status + 2, bad_row);
    if (bad_position) atomicMax(status + 3, bad_position);
    falls = warp_sum(falls);
    falls_between_rows = warp_sum(falls_between_rows);
    if (lane_id() == 0 && falls) atomicAdd((uint64*)status + 4, (uint64)falls);
    if (lane_id() == 0 && falls_between_rows) atomicAdd((uint64*)status + 5, (uint64)falls_between_rows);
}

// csr_sum_runs: out[i] = the sum of val[order[first[i]]] .. val[order[first[i + 1] - 1]], in that order
//
// mapping   one thread a run
// races     none: one owner a sum, terms added in order
template <class A>
__global__ void csr_sum_runs(const A* val, const int64* order, const int64* first, int64 n_runs, A* out) {
    const int64 run = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (run >= n_runs) return;
    A sum = val[order[first[run]]];
    for (int64 i = first[run] + 1; i < first[run + 1]; ++i) sum = add(sum, val[order[i]]);
    out[run] = sum;
}
