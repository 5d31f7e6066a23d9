// Prefix sums, in one launch and without a word of the host's; and what they are often taken of.

#include "prefix.cuh"

// prefix_sums: sums[i] = counts[0] + ... + counts[i]; and where `host` is not null, its number k gets sums[(k + 1) * every - 1],
// where a part of the counts ends. `state` is zeroed by the host: the next tile, and the words of sum_before_tile
//
// mapping   one thread block a tile of THREADS * U numbers, in the order in which blocks begin
// traffic   16 bytes a number
// requires  counts of 0 at least, and sums below 2^62
// races     none: see sum_before_tile
template <int THREADS, int U>
__global__ void prefix_sums(const int64* counts, int64 n, uint64* state, int64* sums, int64 every, int64* host) {
    __shared__ int64 tile, before;
    if (threadIdx.x == 0) tile = atomicAdd(state, 1ull);
    __syncthreads();
    const int64 first = (tile * THREADS + threadIdx.x) * U;
    int64 sum[U], total;
#pragma unroll
    for (int u = 0; u < U; ++u) sum[u] = first + u < n ? counts[first + u] : 0;
    sums_of_block<THREADS, U>(sum, total);
    if (threadIdx.x == 0) before = sum_before_tile(state + 1, tile, total);
    __syncthreads();
#pragma unroll
    for (int u = 0; u < U; ++u) {
        if (first + u >= n) break;
        sums[first + u] = before + sum[u];
        if (host && (first + u + 1) % every == 0) host[(first + u + 1) / every - 1] = before + sum[u];
    }
}

// prefix_parts: counts[r + 1] = the parts of row r, of `size` entries at most, and `least` parts at least; 0 in counts[0] and
// in what is there for prefix_sums
//
// mapping   one thread a number
// traffic   8 bytes a row read, 8 written
// races     none
__global__ void prefix_parts(const int64* ptr, int64 n_rows, int64 size, int64 least, int64* counts, int64 n_counts) {
    const int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (i < n_counts) counts[i] = i && i <= n_rows ? max(least, (ptr[i] - ptr[i - 1] + size - 1) / size) : 0;
}
