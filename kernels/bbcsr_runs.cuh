// What brings the numbers of rows along a bin of BBCSR: from the order of a canonical CSR, entry k of a row to slot k.

// A tile of a bin for a warp, whose lane has a row: `length` numbers from `from` on in `data`, and behind them `pad`. put(k, number)
// gets those of the lane's row from `begin` on, WARP at most. They are read along rows, by way of shared memory.
template <class T, class F>
__device__ void put_tile(const T* data, int64 from, int length, int begin, int bin_length, T pad, T (&tile)[WARP][WARP + 1], F put) {
    constexpr int BATCH = sizeof(T) == 8 ? 16 : 8;
    // the ends of rows are read several at a time: by 8, 16 or 32 threads each
    const int lane = lane_id(), left = bin_length - begin, shift = left <= 8 ? 3 : left <= 16 ? 4 : 5;
    const int width = 1 << shift, k_of_lane = lane & (width - 1);
    // BATCH loads, then BATCH stores: the compiler moves no load before a store that may write the same address
    for (int i = 0; i < width; i += BATCH) {
        T number[BATCH];
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int r = (((i + u) << (5 - shift)) + (lane >> shift)) & (WARP - 1);
            const bool is_there = begin + k_of_lane < __shfl_sync(FULL, length, r) && i + u < width;
            const int64 at = shuffle(from, r) + begin + k_of_lane;
            number[u] = is_there ? stream(data + at) : pad;
        }
#pragma unroll
        for (int u = 0; u < BATCH; ++u)
            if (i + u < width) tile[((i + u) << (5 - shift)) + (lane >> shift)][k_of_lane] = number[u];
    }
    __syncwarp();
#pragma unroll 8
    for (int k = 0; k < min(width, left); ++k) put(begin + k, tile[lane][k]);
    __syncwarp();
}

// The same of the values of a bin of long rows, with the row offsets `starts`, for a thread block. W is a word of a value's size.
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
