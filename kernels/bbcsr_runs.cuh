// Values of a bin of long rows, from the order of a canonical CSR with the row offsets `starts`; without holes: entry k of a row is
// slot k of it. W is a word of a value's size.
//
// The rows of a bin are neighbours in the data: as many as fit CAP numbers are read as one run by the thread block, and written
// along the bin; of rows that are longer LEAST at a time, in pieces.
template <class P, class W, int THREADS, int CAP>
__device__ void copy_runs(int64 bin, const int64* bin_rowptr, const P* starts, int64 n_rows, const W* data, W* values) {
    constexpr int BATCH = 2048 / THREADS, LEAST = 8;
    constexpr int SKEW = sizeof(W) > 4 ? 128 / sizeof(W) : WARP;  // numbers to one that is left out, against bank conflicts
    __shared__ W run[CAP + CAP / SKEW];
    const int lane = lane_id();
    const int64 row = bin * WARP + lane, first = bin_rowptr[bin];
    const int64 from = starts[min(row, n_rows)];
    const int length = (int)(starts[min(row + 1, n_rows)] - from), bin_length = (int)((bin_rowptr[bin + 1] - first) / WARP);
    values += first + lane;

    int rows = WARP;
    while (rows > LEAST && (int64)rows * bin_length > CAP) rows /= 2;
    const bool whole = (int64)rows * bin_length <= CAP;
    const int piece = whole ? bin_length : CAP / LEAST;
    for (int begin = 0; begin < bin_length; begin += piece) {
        for (int r = 0; r < WARP; r += rows) {
            const int n_runs = whole ? 1 : rows, last = whole ? r + rows - 1 : r;  // rows of the first run
            for (int k = 0; k < n_runs; ++k) {
                const W* source = data + shuffle(from, r + k) + begin;
                const int to = k * piece;
                const int left = (int)(shuffle(from, last + k) - shuffle(from, r + k)) + __shfl_sync(FULL, length, last + k) - begin;
                const int n = whole ? left : min(left, piece);
                // loads before stores, BATCH of each
                for (int i = threadIdx.x; i < n; i += THREADS * BATCH) {
                    W value[BATCH];
#pragma unroll
                    for (int u = 0; u < BATCH; ++u) value[u] = i + u * THREADS < n ? stream(source + i + u * THREADS) : W{};
#pragma unroll
                    for (int u = 0; u < BATCH; ++u) {
                        const int at = to + i + u * THREADS;
                        if (i + u * THREADS < n) run[at + at / SKEW] = value[u];
                    }
                }
            }
            __syncthreads();
            const int own = whole ? (int)(from - shuffle(from, r)) : (lane - r) * piece;
            if (lane >= r && lane < r + rows) {
                const int end = min(piece, bin_length - begin);
#pragma unroll 4
                for (int k = threadIdx.x / WARP; k < end; k += THREADS / WARP) {
                    const int at = own + k;
                    values[(int64)(begin + k) * WARP] = begin + k < length ? run[at + at / SKEW] : W{};
                }
            }
            __syncthreads();
        }
    }
}
