// Prefix sums of what the threads of a block hold.

// Of U numbers a thread, one thread after the other: sum[u] becomes the sum of all up to and with that one, and `total` that of
// the block. All threads must call it, and wait before they call it again.
template <int THREADS, int U>
__device__ void sums_of_block(int64 (&sum)[U], int64& total) {
    __shared__ int64 sum_of_warp[THREADS / WARP];
#pragma unroll
    for (int u = 1; u < U; ++u) sum[u] += sum[u - 1];
    const int lane = lane_id(), warp = threadIdx.x / WARP;
    int64 up_to = sum[U - 1];  // of this thread and those before it in its warp
    for (int apart = 1; apart < WARP; apart *= 2) {
        const int64 other = shuffle(up_to, max(lane - apart, 0));
        if (lane >= apart) up_to += other;
    }
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
