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
