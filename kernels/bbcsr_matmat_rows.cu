// Y = alpha * A @ X + beta * Y for BBCSR with blocks of 1, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for
// the groups.

#include "values.cuh"
#include "bbcsr.cuh"
#include "matrix.cuh"
#include "pieces.cuh"

// Bins of at most SHORT steps are over before loads ahead have paid: L2 is asked for the tables of those that come next.
constexpr int SHORT = 8, BINS_AHEAD = 2;  // a multiprocessor

__device__ inline int n_processors() {
    int n;
    asm("mov.u32 %0, %%nsmid;" : "=r"(n));
    return n;
}

// nonzeros whose rows of X are under way together, each W of N vectors: a power of two
__device__ constexpr int together(int N, int W) { return 2 * W <= N ? 2 * together(N, 2 * W) : 1; }

// A row of A for WARPS warps that share it, each ROUND lanes of it: where it lies, and the E nonzeros that the lane loads
// ahead.
template <class A, class I, class M, int ROUND, int E, int WARPS>
struct Row {
    int n_steps, begin, end, step;
    bool is_narrow;
    const void* col;
    Opened<A> data;
    int64 origin;  // the row of X that columns count from
    I c[E];        // as stored
    Stored<A> v[E];

    __device__ Row(const Bbcsr<A, I, M>& m, const Opened<A>& values, int64 row) : data(values) {
        const Bin<A, I, M, 1, false> own(m, values, row / WARP, (int)(row % WARP));
        is_narrow = own.is_narrow();
        col = is_narrow ? (const void*)own.narrow(m) : (const void*)own.wide(m);
        origin = is_narrow ? own.origin() : 0;
        data = own.data;
        end = n_steps = own.n_blocks;
        begin = 0;
    }

    __device__ bool is_longer(int64 steps) const {
        return is_narrow ? ::is_longer<I>((const uint16*)col, steps, n_steps) : ::is_longer<I>((const I*)col, steps, n_steps);
    }

    // no more than `most` steps from `first` on
    __device__ void limit(int first, int most) {
        begin = first;
        end = n_steps = min(n_steps, first + most);
    }

    __device__ void load() {
#pragma unroll
        for (int e = 0; e < E; ++e) {
            const bool here = step < end;
            c[e] = is_narrow ? (I)0xffff : I(-1);
            if (here)
                c[e] = is_narrow ? (I)cached((const uint16*)col + step * (int64)WARP) : cached((const I*)col + step * (int64)WARP);
            v[e] = here ? cached(data.slot + step * (int64)WARP) : Stored<A>{};
            step += WARPS * ROUND;
        }
    }

    // the first nonzeros of this thread
    __device__ void start() {
        step = begin + threadIdx.x / WARP % WARPS * ROUND + threadIdx.x % ROUND;
        load();
    }

    __device__ bool is_stored(int e) const { return is_narrow ? c[e] != (I)0xffff : c[e] >= 0; }
};

// Adds N nonzeros of the group's row: those that its lanes `first` on hold, or where a lane holds E > 1 all. Unless ALL are
// there, those are whose bit in `stored`, counted from the group's first lane, is 1. The last of a lane's vectors is `last`
// behind the first.
template <int G, int E, bool ALL, int N, class A, class Y, int V, int W, class O>
__device__ void add_nonzeros(const Opened<A>& data, const Vector<Y, V>* x, const O (&row)[E], const LookedUp<A> (&v)[E],
                             const unsigned (&stored)[E], int first, int last, Columns<Y, V, W, G * V>& sum) {
    Columns<Y, V, W, G * V> of_x[N];
#pragma unroll
    for (int t = 0; t < N; ++t) {
        const int e = t / G, lane = first + t % G;
        const auto from = x + (G == 1 ? row[e] : shuffle(row[e], lane, FULL, G));
        if (!ALL) of_x[t] = {};
        if (ALL || stored[e] >> lane & 1)
#pragma unroll
            for (int w = 0; w < W; ++w) of_x[t].vector[w] = cached(from + (w < W - 1 ? w * G : last));
    }
#pragma unroll
    for (int t = 0; t < N; ++t) {
        const int e = t / G, lane = first + t % G;
        const Y value = data.template widened<Y>(G == 1 ? v[e] : shuffle(v[e], lane, FULL, G));
        if (ALL)
            sum.add_product(value, of_x[t]);
        else  // adding 0 would make +0 of -0
            sum.add_product_unless(!(stored[e] >> lane & 1), value, of_x[t]);
    }
}

// Adds to the sum of each of the warp's groups its nonzeros of the row, which has started.
template <int G, int N, class A, class Y, class I, class M, int ROUND, int E, int WARPS, int V, int W, class O>
__device__ void add_row(Row<A, I, M, ROUND, E, WARPS>& own, const Y* x, int64 k, O row_of_x, int last,
                        Columns<Y, V, W, G * V>& sum) {
    constexpr int TOGETHER = together(N, W);
    constexpr unsigned EACH = FULL / (G < WARP ? (1u << G % WARP) - 1 : FULL);  // the first bit of every group
    const int first_lane = lane_id() & ~(G - 1);
    auto origin = reinterpret_cast<const Vector<Y, V>*>(x + own.origin * k);
    asm("" : "+l"(origin));  // one pointer, not a sum of two for each row
    const int n_steps = own.n_steps;
#pragma unroll 1
    for (int begin = own.begin; begin < n_steps; begin += WARPS * ROUND * E) {
        O row[E];
        LookedUp<A> v[E];
        unsigned stored[E], of_group[E], any = 0, all = FULL;
#pragma unroll
        for (int e = 0; e < E; ++e) {
            const bool is_stored = own.is_stored(e);
            row[e] = (O)own.c[e] * row_of_x;
            v[e] = is_stored ? own.data.looked_up(own.v[e]) : LookedUp<A>{};
            stored[e] = __ballot_sync(FULL, is_stored);
            of_group[e] = stored[e] >> first_lane;
            any |= stored[e];
            all &= stored[e];
        }
        if (!any) break;  // padding comes last
        own.load();
#pragma unroll 1
        for (int first = 0; first < G; first += TOGETHER) {
            const unsigned wanted = E > 1 ? FULL : (unsigned)((1ull << TOGETHER % 64) - 1) * EACH << first;
            if ((all & wanted) == wanted)
                add_nonzeros<G, E, true, TOGETHER, A>(own.data, origin, row, v, of_group, first, last, sum);
            else if (any & wanted)
                add_nonzeros<G, E, false, TOGETHER, A>(own.data, origin, row, v, of_group, first, last, sum);
            else
                break;
        }
    }
}

// The sums of rows that T neighbouring warps of a thread block share, LANES lanes of each, in the first of these warps: in the
// order of warps. All threads must call it.
template <int G, int LANES, int T, class Y, int V, int W>
__device__ void add_warps(Columns<Y, V, W, G * V>& sum) {
    __shared__ alignas(16) Y sums[PIECE_WARPS][WARP / LANES][W * G * V];
    const int warp = threadIdx.x / WARP;
    auto of_warp = [&](int warp) { return sums[warp][lane_id() / LANES] + lane_id() % G * V; };
    if (warp % T && lane_id() % LANES < G) sum.keep(of_warp(warp), G * V);
    __syncthreads();
    if (warp % T) return;
#pragma unroll 1
    for (int i = 1; i < T; ++i) {
        Columns<Y, V, W, G * V> other;
        other.take(of_warp(warp + i), G * V);
        sum.add(other);
    }
}

// bbcsr_matmat_rows: all bins
//
// mapping   S groups of G lanes a row and W * G * V columns (tile_of_block() counts these), of as many warps of a thread block as
//           there are: so a warp has several rows, and loads what lies side by side. Of the row's next nonzeros each lane
//           loads the values and columns of E, a round ahead, and its group passes them on by shuffles; N vectors of rows of X
//           are under way together. One warp of a short bin asks for the tables of a later one. Rows of bins with `pieces`
//           have a thread block for each piece, the first of the grid
// traffic   slot: sizeof(A) + (2 or sizeof(I)) bytes for each W * G * V columns; a row of X for each nonzero; Y once
// requires  blocks of a row before its padding (invariant 3); neither values nor rows of X are read for padding; V divides k;
//           k is W * G * V or more, or W is 1, or it is more than (W - 1) * G * V, and then PART; an O counts the vectors of V
//           numbers that X has; PIECE_WARPS warps
// races     none: the groups of a row own its columns, and add their sums in the order of a tree, and of warps; pieces meet as
//           pieces.cuh says
template <class A, class Y, class I, class M, int G, int V, int W, int S, int N, bool PART, bool CUT, class O>
__global__ __launch_bounds__(PIECE_WARPS* WARP, 32 / PIECE_WARPS) void bbcsr_matmat_rows(
    const Bbcsr<A, I, M> m, const Pieces<Y> pieces, int64 k, const Y* __restrict__ x, Y* __restrict__ y, Y alpha, Y beta,
    int update) {
    constexpr int E = together(N, W) > G ? together(N, W) / G : 1;
    constexpr int T = S < PIECE_WARPS ? S : PIECE_WARPS, LANES = G * (S / T);  // warps of a row, and its lanes in each
    const Opened<A>& values = m.data.opened();
    // the last columns go with some before them, which are not stored twice, where there are as many
    const int64 begin = tile_of_block() * (W * G * V), at = max(min(begin, k - W * G * V), (int64)0) + lane_id() % G * V;
    // a lane that does not have the last of its vectors loads the row's last one, and does not store it: loads under a condition
    // would wait for each other, and those of other parts of the row would take L1's time
    const int last = PART ? (int)min((k - at) / V - 1, (int64)(W - 1) * G) : (W - 1) * G;
    const O row_of_x = (O)(k / V);
    x += at < k ? at : 0;
    Columns<Y, V, W, G * V> sum[1] = {};
    const Piece<CUT> piece(pieces);
    if (piece.is_one) {
        const int64 row = piece.row;
        Row<A, I, M, WARP, E, PIECE_WARPS> own(m, values, row);
        own.limit(piece.first(), piece.n_steps);
        own.start();
        add_row<G, N>(own, x, k, row_of_x, last, sum[0]);
        if (piece.template add<G>(pieces, sum) && threadIdx.x < G)
            sum[0].store(y + row * k + at, at, k, alpha, beta, update, begin);
        return;
    }
    const int warp = threadIdx.x / WARP;
    const int64 warps = ((blockIdx.x - piece.n_thread_blocks(pieces)) * (int64)PIECE_WARPS + warp) / T;
    const int64 row = warps * (WARP / LANES) + lane_id() / LANES;
    if (row >= m.n_bins * WARP) return;  // and so do all warps of the row
    Row<A, I, M, LANES, E, T> own(m, values, row);
    const bool is_elsewhere = CUT && own.is_longer(pieces.longest);  // in thread blocks of its own
    if (is_elsewhere) own.end = 0;
    own.start();
    // after this row's own loads, which it waits for with the bin's
    if (G * W > 2 && own.n_steps <= SHORT && row % WARP < WARP / LANES && warp % T == 0)
        ask_for_bin(m, values, row / WARP + BINS_AHEAD * n_processors());
    add_row<G, N>(own, x, k, row_of_x, last, sum[0]);
    add_groups<G, LANES>(sum);
    if constexpr (T > 1) add_warps<G, LANES, T>(sum[0]);
    if (warp % T == 0 && lane_id() % LANES < G && row < m.n_rows && !is_elsewhere)
        sum[0].store(y + row * k + at, at, k, alpha, beta, update, begin);
}
