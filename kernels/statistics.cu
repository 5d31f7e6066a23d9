// Blocks of several rows, counted over windows of a CSR's rows: which block size suits the matrix. What single rows tell is
// counted with the check (csr_look.cu).

#include "windows.cuh"

// statistics_blocks: n_blocks[k * stride + i] = the different block columns of block row i of the counted windows, for the
// k-th block size; found[2 k] += them
//
// mapping   one thread block a block row (blockIdx.x) and size (blockIdx.y); an entry counts that is the first of its block
//           in its row, if no row of the block row before has one, which a search tells
// traffic   sizeof(I) bytes a nonzero and size, and what searches read
// requires  canonical CSR; sizes divide ROWS; found is zeroed by the host
// races     sums of integers, taken atomically
template <class P, class I>
__global__ void statistics_blocks(const P* indptr, const I* indices, int64 n_rows, int64 n_windows, int64 n_counted,
                                  uint64 sizes, int64 stride, int* n_blocks, uint64* found) {
    const int size = size_at(sizes, blockIdx.y);
    const int64 per_window = ROWS / size, window = blockIdx.x / per_window;
    if (window >= n_counted) return;
    const int64 row = first_row(window, n_windows, n_counted) + blockIdx.x % per_window * size;
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    int count = 0;
    for (int64 here = row; here < min(row + size, n_rows); ++here) {
        const int64 begin = indptr[here], end = indptr[here + 1];
        for (int64 at = begin + threadIdx.x; at < end; at += blockDim.x) {
            const int64 block = indices[at] / size;
            bool is_new = at == begin || indices[at - 1] / size != block;
            for (int64 other = row; is_new && other < here; ++other) {
                const int64 first = indptr[other], length = indptr[other + 1] - first;
                const int64 found_at = lower_bound(indices + first, length, block * size);
                is_new = found_at == length || indices[first + found_at] / size != block;
            }
            count += is_new;
        }
    }
    if (count) atomicAdd(&total, count);
    __syncthreads();
    if (threadIdx.x == 0) {
        n_blocks[blockIdx.y * stride + blockIdx.x] = total;
        atomicAdd(found + 2 * blockIdx.y, (uint64)total);
    }
}

// statistics_bins: found[2 k + 1] += the most blocks of a row, summed over the bins of the counted windows
//
// mapping   one warp a bin (blockIdx.x) and block size (blockIdx.y), one thread a block row that touches the bin
// traffic   4 bytes a block row
// requires  n_blocks from statistics_blocks; sizes of 2 at least
// races     sums of integers, taken atomically
__global__ void statistics_bins(const int* n_blocks, int64 n_bins, uint64 sizes, int64 stride, uint64* found) {
    const int64 bin = warp_id();
    const int size = size_at(sizes, blockIdx.y);
    int most = 0;
    if (bin < n_bins) {
        const int64 block_row = bin * WARP / size + lane_id();
        most = block_row <= (bin * WARP + WARP - 1) / size ? n_blocks[blockIdx.y * stride + block_row] : 0;
    }
    add_to_totals<1>({warp_max(most)}, found + 2 * blockIdx.y + 1);
}
