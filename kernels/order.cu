// Dense matrices whose columns are contiguous in C order: for products with them, whose kernels read rows.

// to_c_order: y (n_rows, n_cols) in C order = x of that shape, whose columns begin `apart` numbers from each other
//
// mapping   one block a tile of `rows` rows and `cols` columns, by way of shared memory: neighbouring threads read neighbours
//           of a column, and write neighbours of a row
// traffic   2 sizeof(T) bytes an element, in pieces of `rows` elements that are read and of `cols` that are written
// requires  rows and cols of THREADS at most, cols * (rows | 1) of TILE at most; a block for each tile, those of a panel of
//           columns one after the other
// races     none: each element is written once, after the barrier by a thread of the block that read it
template <class T, int THREADS, int TILE>
__global__ void to_c_order(const T* x, int64 apart, T* y, int64 n_rows, int64 n_cols, int rows, int cols, uint32 n_row_tiles) {
    __shared__ T tile[TILE];
    const int stride = rows | 1;  // odd: rows of a column, and columns of a row, lie in different banks
    const int64 first_row = (int64)(blockIdx.x % n_row_tiles) * rows, first_col = (int64)(blockIdx.x / n_row_tiles) * cols;
    const int rows_here = min((int64)rows, n_rows - first_row), cols_here = min((int64)cols, n_cols - first_col);
    const int row = threadIdx.x % rows;
    if (row < rows_here && threadIdx.x < THREADS / rows * rows) {
        const T* const from = x + first_col * apart + first_row + row;
        for (int c = threadIdx.x / rows; c < cols_here; c += THREADS / rows) tile[c * stride + row] = from[c * apart];
    }
    __syncthreads();
    const int col = threadIdx.x % cols;
    if (col < cols_here && threadIdx.x < THREADS / cols * cols)
        for (int r = threadIdx.x / cols; r < rows_here; r += THREADS / cols)
            y[(first_row + r) * n_cols + first_col + col] = tile[col * stride + r];
}

// few_to_c_order: the same of K columns
//
// mapping   a thread a row, which reads its K numbers; a block writes its rows as one run, by way of shared memory
// traffic   2 sizeof(T) bytes an element
// races     as above
template <class T, int K, int THREADS>
__global__ __launch_bounds__(THREADS) void few_to_c_order(const T* x, int64 apart, T* y, int64 n_rows) {
    constexpr int SKEW = sizeof(T) < 16 ? 128 / sizeof(T) : 8;  // numbers to one that is left out, against bank conflicts
    __shared__ T run[K * THREADS + K * THREADS / SKEW];
    const int64 first = blockIdx.x * (int64)THREADS;
    const int rows = min((int64)THREADS, n_rows - first);
    if (threadIdx.x < rows) {
        T row[K];
#pragma unroll
        for (int i = 0; i < K; ++i) row[i] = x[i * apart + first + threadIdx.x];
#pragma unroll
        for (int i = 0; i < K; ++i) {
            const int at = threadIdx.x * K + i;
            run[at + at / SKEW] = row[i];
        }
    }
    __syncthreads();
    y += first * K;
#pragma unroll
    for (int i = 0; i < K; ++i) {
        const int at = threadIdx.x + i * THREADS;
        if (at < rows * K) y[at] = run[at + at / SKEW];
    }
}
