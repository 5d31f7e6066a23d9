// Canonical CSR: what conversions rely on is checked here, before any of them runs.

// csr_check: is this a CSR, and is it canonical?
//
// mapping   one thread a nonzero and one a row, grid-strided
// traffic   sizeof(I) bytes a nonzero, sizeof(P) bytes a row
// requires  indptr has n_rows + 1 entries, begins with 0 and ends with nnz (the host looks)
// races     minima and counts are integers, taken atomically: the result does not depend on order
//
// status[0] the first row whose indptr decreases, status[1] the first position of an index out of range (both start at a
// value larger than any), status[2] the neighbours of all nonzeros that do not ascend, status[3] those of them that are the
// last of one row and the first of another: the matrix is canonical when the two counts agree.
template <class P, class I>
__global__ void csr_check(const P* indptr, const I* indices, int64 n_rows, int64 n_cols, int64 nnz, int64* status) {
    const int64 stride = gridDim.x * (int64)blockDim.x, thread = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    int64 falls = 0, falls_between_rows = 0;
    for (int64 position = thread; position < nnz; position += stride) {
        const I col = indices[position];
        if (col < 0 || col >= n_cols) atomicMin(status + 1, position);
        falls += position > 0 && indices[position - 1] >= col;
    }
    for (int64 row = thread; row < n_rows; row += stride) {
        const int64 first = indptr[row], next = indptr[row + 1];
        if (first > next) atomicMin(status, row);
        if (first < next && 0 < first && first < nnz) falls_between_rows += indices[first - 1] >= indices[first];
    }
    falls = warp_sum(falls);
    falls_between_rows = warp_sum(falls_between_rows);
    if (lane_id() == 0 && falls) atomicAdd((uint64*)status + 2, (uint64)falls);
    if (lane_id() == 0 && falls_between_rows) atomicAdd((uint64*)status + 3, (uint64)falls_between_rows);
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
