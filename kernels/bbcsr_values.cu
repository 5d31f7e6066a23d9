// Values for BBCSR, from the order of a canonical CSR with the row offsets `starts`. W is a word of a value's size.

#include "bbcsr_tiles.cuh"

// bbcsr_values: of blocks without holes
//
// mapping   a warp a bin, a tile of it after the other: 32 x 32 numbers (row, k), which are read along the rows and written
//           along the bin
// traffic   2 sizeof(W) a slot; sizeof(P) bytes a row and warp
// requires  entry k of a row is slot k of it
// races     none: a warp owns its tiles
template <class P, class W, int WARPS>
__global__ void bbcsr_values(const int64* bin_rowptr, const P* starts, int64 n_rows, int64 n_bins, const W* data, W* values) {
    __shared__ W tiles[WARPS][WARP][WARP + 1];  // one column more, so that reading down a column meets every bank
    const int64 bin = warp_id();
    if (bin >= n_bins) return;
    const int64 row = bin * WARP + lane_id(), from = row < n_rows ? starts[row] : 0, first = bin_rowptr[bin];
    const int length = row < n_rows ? (int)(starts[row + 1] - from) : 0, bin_length = (int)((bin_rowptr[bin + 1] - first) / WARP);
    values += first + lane_id();
    for (int begin = 0; begin < bin_length; begin += WARP)
        put_tile(data, from, length, begin, bin_length, W{}, tiles[threadIdx.x / WARP],
                 [&](int k, W value) { values[(int64)k * WARP] = value; });
}

// bbcsr_values_runs: the same where rows are long
//
// mapping   a thread block a bin, whose rows are neighbours in the data: as many as fit CAP numbers are read as one run, and
//           written along the bin; of rows that are longer LEAST at a time, in pieces
// traffic   2 sizeof(W) a slot; sizeof(P) bytes a row and warp
// requires  entry k of a row is slot k of it
// races     none: a thread block owns its bin
template <class P, class W, int THREADS, int CAP>
__global__ void bbcsr_values_runs(const int64* bin_rowptr, const P* starts, int64 n_rows, const W* data, W* values) {
    constexpr int BATCH = 2048 / THREADS, LEAST = 8;
    constexpr int SKEW = sizeof(W) > 4 ? 128 / sizeof(W) : WARP;  // numbers to one that is left out, against bank conflicts
    __shared__ W run[CAP + CAP / SKEW];
    const int lane = lane_id();
    const int64 bin = blockIdx.x, row = bin * WARP + lane, first = bin_rowptr[bin];
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

// bbcsr_values_holes: of blocks with holes
//
// mapping   one warp a bin, one thread a row, which reads the row's values one after the other
// traffic   2 sizeof(W) a slot, sizeof(M) a block and row, 8 bytes a row
// races     none: a thread owns its row's slots
template <class W, class M>
__global__ void bbcsr_values_holes(const int64* bin_rowptr, const int64* starts, int64 n_rows, int64 n_bins, int block_size,
                                   const M* present, const W* data, W* values) {
    constexpr int BATCH = 4;
    const int64 bin = warp_id();
    if (bin >= n_bins) return;
    const int64 row = bin * WARP + lane_id();
    int64 from = row < n_rows ? starts[row] : 0;
    const int64 first = bin_rowptr[bin];
    const int n_blocks = (int)((bin_rowptr[bin + 1] - first) / (WARP * block_size));
    values += first + lane_id();
    present += first / block_size + lane_id();
    for (int block = 0; block < n_blocks; ++block) {
        const uint32 bits = present[(int64)block * WARP];
        for (int j = 0; j < block_size; j += BATCH) {
            W value[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                const bool entry = j + u < block_size && (bits >> (j + u) & 1);
                value[u] = entry ? data[from] : W{};
                from += entry;
            }
#pragma unroll
            for (int u = 0; u < BATCH; ++u)
                if (j + u < block_size) values[((int64)block * block_size + j + u) * WARP] = value[u];
        }
    }
}
