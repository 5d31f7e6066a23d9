// Y = alpha * A @ X + beta * Y for BBCSR with large blocks without holes, of values of 8 bytes, X (n_cols, k) and Y
// (n_rows, k) row-major: the tables by way of shared memory. See matrix.cuh for the groups.

#include "values.cuh"
#include "bbcsr.cuh"
#include "matrix.cuh"
#include "pieces.cuh"
#include "copies.cuh"

// steps that are under way
constexpr int AHEAD = 3;

// A step of a warp: a block of each of its GROUPS groups, S of which share a block row. Values lie by column and row
template <class A, class I, int B, int GROUPS, int S>
struct Steps {
    static_assert(sizeof(A) == 8, "a copy takes 16 bytes at most");
    static constexpr int TOGETHER = B % 2 == 0 ? 2 : 1;  // rows in a copy
    static constexpr int IN_A_COLUMN = GROUPS * B / TOGETHER, COPIES = IN_A_COLUMN * B, EACH = (COPIES + WARP - 1) / WARP;
    // groups read 16 bytes at once, of different banks: they lie an odd number of these apart
    static constexpr int AT_ONCE = 16 / sizeof(A), READS = (B * B + AT_ONCE - 1) / AT_ONCE, APART = READS | 1;
    typedef Vector<A, AT_ONCE> Read;
    struct Room {
        Read values[AHEAD + 1][GROUPS][APART];
        int64 columns[AHEAD + 1][GROUPS];  // as stored
    };

    Room& room;
    const A* next;  // slots of the next step, of the first bin that the warp's rows lie in; some lie in the bin after it
    int from[EACH], to[EACH], limit[EACH];  // of each copy: where it lies, where it goes, and steps that it has

    template <class M>
    __device__ Steps(Room& room, const Bbcsr<A, I, M>& m, int64 first_row) : room(room) {
        const int64 bin = first_row / WARP, begin = m.bin_rowptr[bin], end = m.bin_rowptr[bin + 1];
        const int64 after = bin + 1 < m.n_bins ? m.bin_rowptr[bin + 2] : end;
        next = m.data.slot + begin;
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int number = n * WARP + lane_id(), j = number / IN_A_COLUMN, i = number % IN_A_COLUMN * TOGETHER;
            const int group = i / B, row = (int)(first_row % WARP) + group / S * B + i % B;
            const int n_blocks = (int)((row < WARP ? end - begin : after - end) / (WARP * B));
            from[n] = row % WARP + (group % S * B + j) * WARP + (row < WARP ? 0 : (int)(end - begin));
            to[n] = group * (APART * AT_ONCE) + j * B + i % B;
            limit[n] = number < COPIES ? (n_blocks - group % S + S - 1) / S : 0;
        }
    }

    __device__ void copy_values(int step) {
        A* const values = reinterpret_cast<A*>(room.values[step % (AHEAD + 1)]);
#pragma unroll
        for (int n = 0; n < EACH; ++n)
            if (step < limit[n]) copy_by_thread<TOGETHER * sizeof(A)>(values + to[n], next + from[n]);
        next += S * B * WARP;
    }
};

// bbcsr_matmat_staged: all block rows
//
// mapping   S groups of G lanes, of one warp, a block row and W * G * V columns (tile_of_block() counts these): each group
//           every S-th block. A lane holds B sums for each of its columns. The lanes of a warp together copy the values and
//           block columns of its groups to shared memory, AHEAD steps ahead; a group reads its own, 16 bytes at a time
// traffic   as bbcsr_matmat_blocks
// requires  no holes; values of 8 bytes; the same block columns in the rows of a block row; bins of less than 2^31
//           slots; V divides k; k is W * G * V or more, or W is 1; an O counts the vectors of V numbers that X has;
//           PIECE_WARPS warps
// races     none: the groups of a block row own its rows' columns; a warp's room is its own, and what a step has is
//           overwritten after a barrier of the warp
//
// L1's data pipe bounds the product of larger blocks: half of what it does for bbcsr_matmat_blocks is to shuffle values, a
// word at a time. And a step waits for its block column, which comes from memory.
//
// As many thread blocks have room for the registers of sums and rows of X: with fewer lanes five were slower than four.
__device__ constexpr int staged_at_once(int B, int G, int W) { return W == 4 ? 2 : W == 1 && G >= 8 && B == 6 ? 5 : 4; }

template <class A, class Y, class I, class M, int B, int G, int V, int W, int S, class O>
__global__ __launch_bounds__(PIECE_WARPS* WARP, staged_at_once(B, G, W)) void bbcsr_matmat_staged(
    const Bbcsr<A, I, M> m, int64 k, const Y* __restrict__ x, Y* __restrict__ y, Y alpha, Y beta, int update) {
    constexpr int GROUPS = WARP / G;
    typedef Steps<A, I, B, GROUPS, S> Staged;
    __shared__ typename Staged::Room rooms[PIECE_WARPS];
    const int warp = threadIdx.x / WARP, group = lane_id() / G;
    const int64 first_row = (blockIdx.x * (int64)PIECE_WARPS + warp) * (GROUPS / S * B), row = first_row + group / S * B;
    if (first_row >= m.n_rows) return;
    // the last columns go with some before them, which are not stored twice, where there are as many
    const int64 begin = tile_of_block() * (W * G * V), at = max(min(begin, k - W * G * V), (int64)0) + lane_id() % G * V;
    const bool is_here = row < m.n_rows;
    const Bin<A, I, M, B, false> own(m, m.data, (is_here ? row : first_row) / WARP, (int)((is_here ? row : first_row) % WARP));
    const bool is_narrow = own.is_narrow();
    const int n_blocks = is_here ? own.n_blocks : 0;
    Staged steps(rooms[warp], m, first_row);
    // a copy takes 4 bytes at least: two narrow columns
    const int half = is_narrow ? (int)((uint64)own.narrow(m) / sizeof(uint16) % 2) : 0;
    auto copy = [&](int step) {
        const int block = step * S + group % S;
        if (lane_id() % G == 0 && block < n_blocks) {
            int64* const to = &steps.room.columns[step % (AHEAD + 1)][group];
            if (is_narrow)
                copy_by_thread<4>(to, own.narrow(m) - half + block * (int64)WARP);
            else
                copy_by_thread<sizeof(I)>(to, own.wide(m) + block * (int64)WARP);
        }
        steps.copy_values(step);
        end_group_of_copies();
    };
    // the block column of a step, -1 if there is none
    auto column = [&](int step) {
        const int64* const stored = &steps.room.columns[step % (AHEAD + 1)][group];
        if (step * S + group % S >= n_blocks) return I(-1);
        if (!is_narrow) return *reinterpret_cast<const I*>(stored);
        const uint16 narrow = reinterpret_cast<const uint16*>(stored)[half];
        return is_padding<I>(narrow, 0) ? I(-1) : own.base + (I)narrow;
    };
    const O row_of_x = (O)(k / V);
    auto origin = reinterpret_cast<const Vector<Y, V>*>(x + (at < k ? at : 0));
    asm("" : "+l"(origin));  // one pointer, not a sum of two for each row
    Columns<Y, V, W, G * V> sum[B] = {};
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) copy(step);
    wait_for_copies<AHEAD - 1>();
    __syncwarp();
    I c_next = column(0);
#pragma unroll 1
    for (int step = 0; __any_sync(FULL, c_next >= 0); ++step) {
        const I c = c_next;
        wait_for_copies<AHEAD - 2>();
        __syncwarp();  // the next step has arrived, and all lanes have read the one before, whose room is copied to
        copy(step + AHEAD);
        c_next = column(step + 1);
        if (c < 0) continue;
        const Vector<Y, V>* const from = origin + (O)c * (B * row_of_x);
        Columns<Y, V, W, G * V> of_x[B];
#pragma unroll
        for (int j = 0; j < B; ++j)
#pragma unroll
            for (int w = 0; w < W; ++w) of_x[j].vector[w] = cached(from + (j * row_of_x + w * G));
        const auto& values = steps.room.values[step % (AHEAD + 1)][group];
#pragma unroll
        for (int n = 0; n < Staged::READS; ++n) {
            const typename Staged::Read read = values[n];
#pragma unroll
            for (int number = n * Staged::AT_ONCE; number < min((n + 1) * Staged::AT_ONCE, B * B); ++number)
                sum[number % B].add_product(Widen<Y, A>::from(read.at[number % Staged::AT_ONCE]), of_x[number / B]);
        }
    }
    wait_for_copies<0>();
    __syncwarp();
    add_groups<G, G * S>(sum);
#pragma unroll
    for (int i = 0; i < B; ++i)
        if (group % S == 0 && row + i < m.n_rows) sum[i].store(y + (row + i) * k + at, at, k, alpha, beta, update, begin);
}
