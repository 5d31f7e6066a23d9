// Values for BBCSR, from the order of a canonical CSR with the row offsets `starts`. W is a word of a value's size.

#include "bbcsr_runs.cuh"

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
