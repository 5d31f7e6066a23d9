// Y = alpha * A @ X + beta * Y for BBCSR with blocks of 2 to 8: values by way of shared memory (sm_80 and later).

#include "values.cuh"
#include "bbcsr.cuh"
#include "matrix.cuh"
#include "pieces.cuh"

// asynchronous copies to shared memory, of BYTES each: 4, 8 or 16
template <int BYTES>
__device__ void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "n"(BYTES)
                 : "memory");
#endif
}
// those so far are one group
__device__ inline void end_of_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// all but the last LEFT groups have arrived
template <int LEFT>
__device__ void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// The values of one step of a warp, by column and row: of a block of each of its GROUPS groups. AHEAD steps are under way
template <class A, int B, int GROUPS, int S, int AHEAD>
struct Staged {
    static constexpr int TOGETHER = B % 4 == 0 && sizeof(A) == 4 ? 4 : B % 2 == 0 && sizeof(A) <= 8 ? 2 : 1;  // rows in a copy
    static constexpr int IN_A_COLUMN = GROUPS * B / TOGETHER, COPIES = IN_A_COLUMN * B;  // of a step
    static constexpr int EACH = (COPIES + WARP - 1) / WARP;
    // 16 bytes at a time are read, by all groups at once: of different banks where their distance is an odd number of these
    static constexpr int AT_ONCE = 16 / sizeof(A), READS = (B * B + AT_ONCE - 1) / AT_ONCE, APART = READS | 1;
    typedef Vector<A, AT_ONCE> Read;
    static constexpr int BYTES = (AHEAD + 1) * GROUPS * APART * 16;  // of a warp's room

    Read* room;  // of the warp: (AHEAD + 1, GROUPS, APART)
    const A* next;       // slots of the next step's first block, of the first bin that the warp's rows lie in
    int from[EACH], limit[EACH], to[EACH];

    // rows from `first_row` on
    template <class Tables>
    __device__ Staged(Read* room, const Tables& m, const A* slots, int64 first_row) : room(room) {
        const int64 bin = first_row / WARP, begin = m.bin_rowptr[bin], end = m.bin_rowptr[bin + 1];
        const bool is_last = bin + 1 == m.n_bins;
        const int n_blocks = (int)((end - begin) / (WARP * B)), n_blocks_after = is_last ? 0 : (int)((m.bin_rowptr[bin + 2] - end) / (WARP * B));
        next = slots + begin;
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int number = n * WARP + lane_id(), j = number / IN_A_COLUMN, i = number % IN_A_COLUMN * TOGETHER;
            const int group = i / B, share = group % S, row = (int)(first_row % WARP) + group / S * B + i % B;
            const bool is_after = row >= WARP;
            from[n] = row % WARP + (share * B + j) * WARP + (is_after ? (int)(end - begin) : 0);
            limit[n] = COPIES % WARP && number >= COPIES ? 0 : ((is_after ? n_blocks_after : n_blocks) - share + S - 1) / S;
            to[n] = group * (APART * AT_ONCE) + j * B + i % B;
        }
    }

    __device__ Read* of_step(int step) const { return room + step % (AHEAD + 1) * (GROUPS * APART); }

    __device__ void copy(int step) {
        A* const at = reinterpret_cast<A*>(of_step(step));
#pragma unroll
        for (int n = 0; n < EACH; ++n)
            if (step < limit[n]) copy_async<TOGETHER * sizeof(A)>(at + to[n], next + from[n]);
        next += S * B * WARP;
        end_of_group();
    }
};

template <class A, class Y, class I, class M, int B, int G, int V, int W, int S, int AHEAD, int MIN, class O>
__global__ __launch_bounds__(PIECE_WARPS* WARP, MIN) void bbcsr_matmat_staged(const Bbcsr<A, I, M> m, int64 k, const Y* __restrict__ x,
                                                                             Y* __restrict__ y, Y alpha, Y beta, int update) {
    constexpr int GROUPS = WARP / G;
    typedef Staged<A, B, GROUPS, S, AHEAD> Stages;
    __shared__ typename Stages::Read room[PIECE_WARPS][Stages::BYTES / 16];
    __shared__ int64 columns[PIECE_WARPS][AHEAD + 1][GROUPS];
    const int group = lane_id() / G;
    const int64 first_row = (blockIdx.x * (int64)PIECE_WARPS + threadIdx.x / WARP) * (GROUPS / S * B), row = first_row + group / S * B;
    if (first_row >= m.n_rows) return;
    const int64 begin = tile_of_block() * (W * G * V), at = max(min(begin, k - W * G * V), (int64)0) + lane_id() % G * V;
    x += at < k ? at : 0;
    const bool is_here = row < m.n_rows;
    const Bin<A, I, M, B, false> own(m, m.data, (is_here ? row : first_row) / WARP, (is_here ? row : first_row) % WARP);
    Stages values(room[threadIdx.x / WARP], m, m.data.slot, first_row);
    Columns<Y, V, W, G * V> sum[B] = {};
    const bool is_narrow = own.is_narrow();
    const O row_of_x = (O)(k / V);
    auto origin = reinterpret_cast<const Vector<Y, V>*>(x);
    asm("" : "+l"(origin));  // one pointer, not a sum of two for each row
    const int n_blocks = is_here ? own.n_blocks : 0;
    // a copy has 4 bytes at least: two narrow columns
    const char* of_column = is_narrow ? (const char*)own.narrow(m) : (const char*)own.wide(m);
    const int half = is_narrow ? (int)((uint64)of_column >> 1 & 1) : 0;
    of_column -= 2 * half;
    auto copy = [&](int step) {
        const int block = step * S + group % S;
        if (lane_id() % G == 0 && block < n_blocks) {
            if (is_narrow)
                copy_async<4>(&columns[threadIdx.x / WARP][step % (AHEAD + 1)][group], of_column + block * (int64)(WARP * 2));
            else
                copy_async<sizeof(I)>(&columns[threadIdx.x / WARP][step % (AHEAD + 1)][group], of_column + block * (int64)(WARP * sizeof(I)));
        }
        values.copy(step);
    };
    auto column = [&](int step) {
        const int64* const stored = &columns[threadIdx.x / WARP][step % (AHEAD + 1)][group];
        const uint16 narrow = reinterpret_cast<const uint16*>(stored)[half];
        I c = is_narrow ? narrow == 0xffff ? I(-1) : I(own.base + narrow) : *reinterpret_cast<const I*>(stored);
        return step * S + group % S < n_blocks ? c : I(-1);
    };
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) copy(step);
    wait_for_groups<AHEAD - 1>();
    __syncwarp();
    I c_next = column(0);
#pragma unroll 1
    for (int step = 0;; ++step) {
        const I c = c_next;
        if (__all_sync(FULL, c < 0)) break;
        wait_for_groups<AHEAD - 2>();
        __syncwarp();  // also: all lanes have read the step whose room is next
        copy(step + AHEAD);
        c_next = column(step + 1);
        if (c < 0) continue;
        const Vector<Y, V>* const from = origin + (O)c * (B * row_of_x);
        Columns<Y, V, W, G * V> of_x[B];
#pragma unroll
        for (int j = 0; j < B; ++j)
#pragma unroll
            for (int w = 0; w < W; ++w) of_x[j].vector[w] = cached(from + (j * row_of_x + w * G));
        const typename Stages::Read* const read = values.of_step(step) + group * Stages::APART;
#pragma unroll
        for (int n = 0; n < Stages::READS; ++n) {
            const typename Stages::Read some = read[n];
#pragma unroll
            for (int e = 0; e < Stages::AT_ONCE; ++e) {
                const int number = n * Stages::AT_ONCE + e;
                if (number < B * B) sum[number % B].add_product(Widen<Y, A>::from(some.at[e]), of_x[number / B]);
            }
        }
    }
    wait_for_groups<0>();
    if constexpr (S > 1) {
        const unsigned mask = (G * S == WARP ? FULL : (1u << G * S % WARP) - 1) << (lane_id() & ~(G * S - 1));
        __syncwarp(mask);
        add_groups<G, G * S>(sum, mask);
    }
    if (group % S) return;
#pragma unroll
    for (int i = 0; i < B; ++i)
        if (row + i < m.n_rows) sum[i].store(y + (row + i) * k + at, at, k, alpha, beta, update, begin);
}
