// Windows of a CSR's rows over which is counted what tells which format suits the matrix. A window has ROWS rows, whole
// bins and whole blocks of all sizes; of `n_windows` that cover the matrix those that count are `n_counted`, evenly spaced.

[[maybe_unused]] constexpr int ROWS = 96;

// the first row of counted window k
__device__ inline int64 first_row(int64 k, int64 n_windows, int64 n_counted) {
    return k * (n_windows - 1) / max(n_counted - 1, 1ll) * ROWS;
}

// block sizes, up to 8 of them, a byte each
__device__ inline int size_at(uint64 sizes, int k) { return (int)(sizes >> 8 * k & 255); }
