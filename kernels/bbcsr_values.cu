// Values for BBCSR, from the order of a canonical CSR with the row offsets `starts`. W is a word of a value's size.

#include "bbcsr_runs.cuh"

// bbcsr_values: of blocks without holes
//
// mapping   a warp each for the tiles of a bin (blockIdx.y, and every gridDim.y-th after it): 32 x 32 numbers (row, k),
//           which are read along the rows and written along the bin
// traffic   2 sizeof(W) a slot; sizeof(P) bytes a row and warp
// requires  entry k of a row is slot k of it
// races     none: a warp owns its tiles
template <class P, class W, int WARPS>
__global__ void bbcsr_values(const int64* bin_rowptr, const P* starts, int64 n_rows, int64 n_bins, const W* data, W* values) {
    constexpr int BATCH = sizeof(W) == 8 ? 16 : 8;
    __shared__ W tiles[WARPS][WARP][WARP + 1];  // one column more, so that reading down a column meets every bank
    W(&tile)[WARP][WARP + 1] = tiles[threadIdx.x / WARP];
    const int64 bin = warp_id();
    if (bin >= n_bins) return;
    const int lane = lane_id();
    const int64 row = bin * WARP + lane;
    const int64 from = row < n_rows ? starts[row] : 0;
    const int length = row < n_rows ? (int)(starts[row + 1] - from) : 0;
    const int64 first = bin_rowptr[bin];
    const int bin_length = (int)((bin_rowptr[bin + 1] - first) / WARP);
    values += first + lane;

    for (int begin = blockIdx.y * WARP; begin < bin_length; begin += gridDim.y * WARP) {
        // the ends of rows are read several at a time: by 8, 16 or 32 threads each
        const int left = bin_length - begin, shift = left <= 8 ? 3 : left <= 16 ? 4 : 5;
        const int width = 1 << shift, k_of_lane = lane & (width - 1);
        // loads before stores, BATCH of each: the compiler may not move a load over a store that could touch the same
        // place
        for (int i = 0; i < width; i += BATCH) {
            W value[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                const int r = ((i + u) << (5 - shift)) + (lane >> shift);
                const bool entry = begin + k_of_lane < __shfl_sync(FULL, length, r & (WARP - 1)) && i + u < width;
                const int64 at = shuffle(from, r & (WARP - 1)) + begin + k_of_lane;
                value[u] = entry ? stream(data + at) : W{};
            }
#pragma unroll
            for (int u = 0; u < BATCH; ++u)
                if (i + u < width) tile[((i + u) << (5 - shift)) + (lane >> shift)][k_of_lane] = value[u];
        }
        __syncwarp();
        const int count = min(width, left);
#pragma unroll 8
        for (int k = 0; k < count; ++k) values[(int64)(begin + k) * WARP] = tile[lane][k];
        __syncwarp();
    }
}

// bbcsr_values_runs: the same where rows are long
//
// mapping   a thread block a bin: copy_runs of bbcsr_runs.cuh
// traffic   2 sizeof(W) a slot; sizeof(P) bytes a row and warp
// requires  entry k of a row is slot k of it
// races     none: a thread block owns its bin
template <class P, class W, int THREADS, int CAP>
__global__ void bbcsr_values_runs(const int64* bin_rowptr, const P* starts, int64 n_rows, const W* data, W* values) {
    copy_runs<P, W, THREADS, CAP>(blockIdx.x, bin_rowptr, starts, n_rows, data, values);
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
