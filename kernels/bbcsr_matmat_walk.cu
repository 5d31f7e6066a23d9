// Y = alpha * A @ X + beta * Y for BBCSR with blocks of 1, X (n_cols, k) and Y (n_rows, k) row-major, where neighbouring rows
// need the same rows of X: see matrix.cuh for the groups. For sm_90 and later.

#include "values.cuh"
#include "bbcsr.cuh"
#include "matrix.cuh"
#include "copies.cuh"

constexpr int HELD = 16;  // bins whose tables a thread block holds

// Where thread blocks walk: the next piece is whichever comes first. `taken` counts pieces, for each tile; it wraps to 0 with
// the last, so that it is 0 between products.
struct Walk {
    int64 n_pieces, bins_of_piece, bytes_of_bin;  // a piece has WARP bins at most
    uint32* taken;                                // (tiles,)
};

// a bin in shared memory
struct HeldBin {
    int64 x, y;  // bytes from X to the row of X that columns count from, from Y to the first row
    int n_slots, n_rows;
    bool is_narrow, is_end;
};

// Adds N steps of the groups' rows: `col` and `slot` point to the first. Padding is not read.
template <int N, bool PADS, class C, class A, class Y, int V, int W, int STRIDE>
__device__ void add_products(const unsigned (&c)[N], const Stored<A>* slot, const Opened<A>& values, const char* x,
                             unsigned row_bytes, Columns<Y, V, W, STRIDE>& sum) {
    Columns<Y, V, W, STRIDE> of_x[N];
#pragma unroll
    for (int t = 0; t < N; ++t) {
        if (PADS) of_x[t] = {};
        if (PADS && c[t] == PADDING<C>) continue;
        const Vector<Y, V>* row;
        asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(row) : "r"(c[t]), "r"(row_bytes), "l"(x));
#pragma unroll
        for (int w = 0; w < W; ++w) of_x[t].vector[w] = cached(row + w * (STRIDE / V));
    }
#pragma unroll
    for (int t = 0; t < N; ++t) {
        const bool is_pad = PADS && c[t] == PADDING<C>;  // adding 0 would make +0 of -0
        sum.add_product_unless(is_pad, is_pad ? Y{} : values.template decoded<Y>(slot[t * WARP]), of_x[t]);
    }
}
template <int N, class C, class A, class Y, int V, int W, int STRIDE>
__device__ void add_steps(const C* col, const Stored<A>* slot, const Opened<A>& values, const char* x, unsigned row_bytes,
                          Columns<Y, V, W, STRIDE>& sum) {
    unsigned c[N], most = 0;
#pragma unroll
    for (int t = 0; t < N; ++t) most = max(most, c[t] = (unsigned)col[t * WARP]);
    if (!__any_sync(FULL, most == PADDING<C>))
        add_products<N, false, C, A>(c, slot, values, x, row_bytes, sum);
    else
        add_products<N, true, C, A>(c, slot, values, x, row_bytes, sum);
}
// all steps: N at a time, and what is left in halves, so that most of its loads are under way together
template <int N, class C, class A, class Y, int V, int W, int STRIDE>
__device__ void add_row(const C* col, const Stored<A>* slot, int n_steps, const Opened<A>& values, const char* x,
                        unsigned row_bytes, Columns<Y, V, W, STRIDE>& sum) {
#pragma unroll 1
    for (; n_steps >= N; n_steps -= N, col += N * WARP, slot += N * WARP)
        add_steps<N, C, A>(col, slot, values, x, row_bytes, sum);
    if constexpr (N > 2)
        if (n_steps == N - 1) {
            add_steps<N - 1, C, A>(col, slot, values, x, row_bytes, sum);
            return;
        }
    if constexpr (N > 1) add_row<N / 2, C, A>(col, slot, n_steps, values, x, row_bytes, sum);
}

// bbcsr_matmat_walk: all bins
//
// mapping   a thread block a multiprocessor and tile of W * G * V columns, which takes one piece of neighbouring bins after the
//           other. One of its warps has the tables of the next bins copied to shared memory. The others take the next rows in
//           order: groups of G lanes hold WARP / G rows. So rows of X that neighbouring rows need are found in L1, and as all
//           pieces under way are neighbours too, others in L2. N steps are under way together
// traffic   slot: sizeof(A) + 2 or sizeof(I) bytes for each tile; a row of X for each nonzero; Y once
// requires  sm_90; bins of how.bytes_of_bin at most, all narrow but with WIDE; col_narrow, col_wide and values aligned to 16
//           bytes; bytes of a row of X fit 32 bits; W * G * V divides k; no more thread blocks a tile than pieces
// races     none: a warp owns its rows. A bin's room is copied to after all its rows have been read, for which each warp that
//           took some arrives. Who waits for a bin waits for what was taken before
template <class A, class Y, class I, class M, int G, int V, int W, int N, bool WIDE, int THREADS>
__global__ __launch_bounds__(THREADS, 1) void bbcsr_matmat_walk(
    const Bbcsr<A, I, M> m, const Walk how, int64 k, const Y* __restrict__ x, Y* __restrict__ y, Y alpha, Y beta, int update) {
    constexpr int ROWS = WARP / G, AFTER_END = (THREADS / WARP - 1) / G + 2;  // ends that all warps find one of
    static_assert(AFTER_END <= HELD);
    extern __shared__ uint4 room[];
    __shared__ uint64 is_here[HELD], is_read[HELD];
    __shared__ HeldBin bins[HELD];
    __shared__ unsigned rows_taken;
    const Opened<A>& values = m.data.opened();
    if (threadIdx.x == 0) {
        rows_taken = 0;
        for (int i = 0; i < HELD; ++i) {
            set_up(&is_here[i], 1);
            set_up(&is_read[i], G);
        }
        before_copies();
    }
    __syncthreads();
    const int lane = lane_id();
    const int64 row_bytes = k * sizeof(Y);
    auto tables_of = [&](int place) { return (char*)room + place * how.bytes_of_bin; };

    if (threadIdx.x < WARP) {
        unsigned number = 0;  // of bins
        auto room_for = [&] {
            const int at = number % HELD;
            if (number >= HELD) wait_for(&is_read[at], (number / HELD - 1) & 1);
            return at;
        };
        auto place_in = [&](int64 piece) {
            return Place<I>(m, lane < how.bins_of_piece && piece < how.n_pieces ? piece * how.bins_of_piece + lane : m.n_bins);
        };
        int64 piece = blockIdx.x;
        Place<I> place = place_in(piece);
#pragma unroll 1
        while (piece < how.n_pieces) {
            int64 next = 0;
            if (lane == 0) next = gridDim.x + (int64)atomicInc(how.taken + blockIdx.y, (unsigned)(how.n_pieces - 1));
            next = shuffle(next, 0);
            const Place<I> then = place_in(next);
            const int n_here = __popc(__ballot_sync(FULL, place.n_slots >= 0));
#pragma unroll 1
            for (int i = 0; i < n_here; ++i, ++number) {
                if (lane == i) {
                    const int at = room_for();
                    const int64 row = (piece * how.bins_of_piece + i) * WARP;
                    const int n_rows = (int)min(m.n_rows - row, (int64)WARP);
                    bins[at] = {max(place.base, I(0)) * row_bytes, row * row_bytes, place.n_slots, n_rows, place.is_narrow(), false};
                    char* const to = tables_of(at);
                    copy_tables<A>(to, to + place.n_slots * Values<A>::BYTES, m, values, place, &is_here[at]);
                }
                __syncwarp();
            }
            place = then;
            piece = next;
        }
        if (lane == 0)
            for (int i = 0; i < AFTER_END; ++i, ++number) {
                const int at = room_for();
                bins[at].is_end = true;
                arrive(&is_here[at]);
            }
        return;
    }

    const int64 begin = blockIdx.y * (int64)(W * G * V), column = begin + lane % G * V;
#pragma unroll 1
    while (true) {
        unsigned taken = 0;
        if (lane == 0) taken = atomicAdd(&rows_taken, 1u);
        taken = shuffle(taken, 0);
        const unsigned at = taken / G % HELD;
        wait_for(&is_here[at], taken / G / HELD & 1);
        const HeldBin own = bins[at];
        if (own.is_end) return;
        const int row = taken % G * ROWS + lane / G;
        const char* const from = (const char*)(x + column) + own.x;
        const char* const tables = tables_of(at);
        const char* const columns = tables + own.n_slots * Values<A>::BYTES;
        const Stored<A>* const slot = reinterpret_cast<const Stored<A>*>(tables) + row;
        Columns<Y, V, W, G * V> sum = {};
        const int n_steps = own.n_slots / WARP;
        if (!WIDE || own.is_narrow)
            add_row<N, uint16, A>(reinterpret_cast<const uint16*>(columns) + row, slot, n_steps, values, from, (unsigned)row_bytes, sum);
        else
            add_row<N, I, A>(reinterpret_cast<const I*>(columns) + row, slot, n_steps, values, from, (unsigned)row_bytes, sum);
        __syncwarp();
        if (lane == 0) arrive(&is_read[at]);
        if (row < own.n_rows)
            sum.store(reinterpret_cast<Y*>((char*)(y + column) + own.y) + row * k, column, k, alpha, beta, update);
    }
}
