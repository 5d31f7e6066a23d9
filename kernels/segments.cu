// y = alpha * A @ x + beta * y by segments of columns, for few long rows over many columns: see gpu/segments.py.
//
// A piece is what a row has in a segment. Pieces are numbered segment * n_rows + row, and their nonzeros lie side by
// side, as cut_rows.cu puts them. A long piece is cut into parts, so that no warp has much more to do than others.

struct Pieces {
    const int64* part_of;  // (n_segments * n_rows + 1,) the first part of a piece
    const int64* ptr;      // (n_parts + 1,) where a part begins
    int64 n_rows, n_cols, n_segments, width, nnz;
};

// segments_parts: where the parts of pieces begin
//
// mapping   one thread a piece, and one for the end
// races     none
__global__ void segments_parts(const int64* piece_ptr, const int64* part_of, int64 n_pieces, int64 longest, int64* ptr) {
    const int64 piece = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (piece > n_pieces) return;
    int64 at = piece_ptr[piece];
    if (piece == n_pieces) ptr[part_of[piece]] = at;
    if (piece < n_pieces)
        for (int64 part = part_of[piece]; part < part_of[piece + 1]; ++part, at += longest) ptr[part] = at;
}

// segments_matvec: sums[part] = the sum of a part
//
// mapping   one large block a multiprocessor, with an equal share of the nonzeros, up to whole parts. Its warps take
//           one part after the other; segments of x go to shared memory, one after the other
// traffic   nonzero: sizeof(A) + 2 bytes; part: 8 + sizeof(Y); a segment of x for each block that has some of its parts
// races     none: which warp takes a part does not show. Shared memory is written and read between barriers
//
// U nonzeros of a lane are loaded before the first is multiplied.
template <class A, class Y, int U, int THREADS>
__global__ __launch_bounds__(THREADS, 1) void segments_matvec(const Pieces m, const A* __restrict__ val,
                                                              const uint16* __restrict__ col, const Y* __restrict__ x,
                                                              Y* __restrict__ sums) {
    extern __shared__ uint4 memory[];
    __shared__ int64 range[2];
    __shared__ int taken;
    Y* const segment = reinterpret_cast<Y*>(memory);
    const int64 n_parts = m.part_of[m.n_segments * m.n_rows];
    if (threadIdx.x < 2) {
        const int64 block = blockIdx.x + threadIdx.x;
        range[threadIdx.x] = block == gridDim.x ? n_parts : block ? lower_bound(m.ptr, n_parts, m.nnz * block / gridDim.x) : 0;
    }
    __syncthreads();
    const int lane = lane_id();
    for (int64 first = range[0]; first < range[1];) {
        int64 low = 0, high = m.n_segments;  // the segment of the first part
        while (high - low > 1) {
            const int64 middle = (low + high) / 2;
            (m.part_of[middle * m.n_rows] <= first ? low : high) = middle;
        }
        const int64 begin = low * m.width;
        const int count = (int)(min(range[1], m.part_of[high * m.n_rows]) - first), n_shared = (int)min(m.width, m.n_cols - begin);
        __syncthreads();
        if (threadIdx.x == 0) taken = THREADS / WARP;
#pragma unroll 8
        for (int i = threadIdx.x; i < n_shared; i += THREADS) segment[i] = x[begin + i];
        __syncthreads();
        const int64* const ptr = m.ptr + first;
        int mine = threadIdx.x / WARP;
        int64 from = mine < count ? ptr[mine] : 0, end = mine < count ? ptr[mine + 1] : 0;
        while (mine < count) {
            Y sum{};
            auto add_batch = [&](int64 at) {
                uint16 c[U];
                A v[U];
#pragma unroll
                for (int u = 0; u < U; ++u) c[u] = at + u * WARP < end ? stream(col + at + u * WARP) : uint16(0);
#pragma unroll
                for (int u = 0; u < U; ++u) v[u] = at + u * WARP < end ? stream(val + at + u * WARP) : A{};
#pragma unroll
                for (int u = 0; u < U; ++u)
                    if (at + u * WARP < end) sum = mac(Widen<Y, A>::from(v[u]), segment[c[u]], sum);
            };
            for (; from + U * WARP < end; from += U * WARP) add_batch(from + lane);
            // where the next part lies is asked for before the last batch, not after it
            int next = lane == 0 ? atomicAdd(&taken, 1) : 0;
            next = __shfl_sync(FULL, next, 0);
            const int64 next_from = next < count ? ptr[next] : 0, next_end = next < count ? ptr[next + 1] : 0;
            add_batch(from + lane);
            sum = warp_sum(sum);
            if (lane == 0) sums[first + mine] = sum;
            mine = next;
            from = next_from;
            end = next_end;
        }
        first += count;
    }
}

// segments_finish: y = alpha * (the sums of a row's parts) + beta * y
//
// mapping   one block 32 rows: one thread of each of its SHARES warps a row, every SHARES-th of the segments
// traffic   part: sizeof(Y); piece: 8 bytes; row: sizeof(Y)
// races     none; the sums of warps are added in their order
template <class Y, int SHARES>
__global__ void segments_finish(const Pieces m, const Y* __restrict__ sums, Y* __restrict__ y, Scalar<Y> alpha, Scalar<Y> beta, int update) {
    __shared__ Y of_share[SHARES][WARP];
    const int64 row = blockIdx.x * (int64)WARP + lane_id();
    const int share = threadIdx.x / WARP;
    Y sum{};
    if (row < m.n_rows)
#pragma unroll 4
        for (int64 k = share; k < m.n_segments; k += SHARES) {
            const int64 end = m.part_of[k * m.n_rows + row + 1];
            for (int64 part = m.part_of[k * m.n_rows + row]; part < end; ++part) sum = add(sum, sums[part]);
        }
    of_share[share][lane_id()] = sum;
    __syncthreads();
    if (share || row >= m.n_rows) return;
#pragma unroll
    for (int s = 1; s < SHARES; ++s) sum = add(sum, of_share[s][lane_id()]);
    store(y + row, sum, alpha, beta, update);
}
