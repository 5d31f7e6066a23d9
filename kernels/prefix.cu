// Prefix sums, in one launch and without a word of the host's.

#include "prefix.cuh"

// prefix_sums: sums[i] = counts[0] + ... + counts[i]; and where `host` is not null, its number k gets sums[(k + 1) * every - 1],
// where a part of the counts ends. `state` is zeroed by the host: the next tile, and what each tile has
// found out: nothing yet, its own sum (OWN), or that of all up to it (ALL)
//
// mapping   one thread block a tile of THREADS * U numbers, in the order in which blocks begin. So the tiles before one are
//           under way or done, and it may wait for them
// traffic   16 bytes a number
// requires  counts of 0 at least, and sums below 2^62
// races     none: a word of `state` has one writer, and value and mark in one
// source    D. Merrill, M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVIDIA NVR-2016-002, 2016
template <int THREADS, int U>
__global__ void prefix_sums(const int64* counts, int64 n, uint64* state, int64* sums, int64 every, int64* host) {
    constexpr uint64 OWN = 1, ALL = 2;
    constexpr int SHIFT = 2;
    __shared__ int64 tile, before;
    if (threadIdx.x == 0) tile = atomicAdd(state, 1ull);
    __syncthreads();
    const int64 first = (tile * THREADS + threadIdx.x) * U;
    int64 sum[U], total;
#pragma unroll
    for (int u = 0; u < U; ++u) sum[u] = first + u < n ? counts[first + u] : 0;
    sums_of_block<THREADS, U>(sum, total);
    if (threadIdx.x == 0) {
        uint64* of_tile = state + 1;
        before = 0;
        if (tile) atomicExch(of_tile + tile, (uint64)total << SHIFT | OWN);
        for (int64 other = tile - 1; other >= 0; --other) {
            uint64 known;
            do known = *reinterpret_cast<volatile uint64*>(of_tile + other);
            while (!known);
            before += known >> SHIFT;
            if (known & ALL) break;
        }
        atomicExch(of_tile + tile, (uint64)(before + total) << SHIFT | ALL);
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < U; ++u) {
        if (first + u >= n) break;
        sums[first + u] = before + sum[u];
        if (host && (first + u + 1) % every == 0) host[(first + u + 1) / every - 1] = before + sum[u];
    }
}
