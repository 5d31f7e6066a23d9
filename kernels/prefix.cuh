// Prefix sums of what the threads of a block hold.

// Of U numbers a thread, one thread after the other: sum[u] becomes the sum of all up to and with that one, and `total` that of
// the block. All threads must call it, and wait before they call it again.
template <int THREADS, int U>
__device__ void sums_of_block(int64 (&sum)[U], int64& total) {
    __shared__ int64 sum_of_warp[THREADS / WARP];
#pragma unroll
    for (int u = 1; u < U; ++u) sum[u] += sum[u - 1];
    const int lane = lane_id(), warp = threadIdx.x / WARP;
    const int64 up_to = sum_up_to(sum[U - 1]);
    if (lane == WARP - 1) sum_of_warp[warp] = up_to;
    __syncthreads();
    int64 before = up_to - sum[U - 1];
    total = 0;
    for (int w = 0; w < THREADS / WARP; ++w) {
        before += w < warp ? sum_of_warp[w] : 0;
        total += sum_of_warp[w];
    }
#pragma unroll
    for (int u = 0; u < U; ++u) sum[u] += before;
}

// The sum of all tiles before this one, whose own is `total`; `of_tile` has a word for each tile, 0 at first: nothing yet, its own
// sum (OWN), or that of all up to it (ALL). One thread of a block calls it, of blocks that took their tiles in turn: so the
// tiles before one are under way or done, and it may wait for them. Sums are below 2^62.
//
// races     none: a word has one writer, and value and mark in one
// source    D. Merrill, M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVIDIA NVR-2016-002, 2016
__device__ inline int64 sum_before_tile(uint64* of_tile, int64 tile, int64 total) {
    constexpr uint64 OWN = 1, ALL = 2;
    constexpr int SHIFT = 2;
    int64 before = 0;
    if (tile) atomicExch(of_tile + tile, (uint64)total << SHIFT | OWN);
    for (int64 other = tile - 1; other >= 0; --other) {
        uint64 known;
        do known = *reinterpret_cast<volatile uint64*>(of_tile + other);
        while (!known);
        before += known >> SHIFT;
        if (known & ALL) break;
    }
    atomicExch(of_tile + tile, (uint64)(before + total) << SHIFT | ALL);
    return before;
}
