// Y = alpha * A @ X + beta * Y for BBCSR, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for the groups.

#include "values.cuh"
#include "bbcsr.cuh"
#include "matrix.cuh"
#include "pieces.cuh"

// bbcsr_matmat: all bins, row by row
//
// mapping   one warp a bin and W * G * V columns (tile_of_block() counts these). The 32 / G groups of the warp take 32 / G rows
//           at a time, and G turns make 32 rows: so values and block columns are loaded once, by the lane of their row,
//           and each turn fetches its own by shuffles. With blocks of 1 they are loaded one step ahead. Bins with `pieces`
//           have a thread block for each piece, the first of the grid, whose warps share its steps
// traffic   slot: sizeof(A) + (2 or sizeof(I)) / B bytes for each W * G * V columns, with holes sizeof(M) / B more; and X;
//           Y once
// requires  blocks of a row before its padding (invariant 3); padding and holes are never multiplied; V divides k; k is
//           W * G * V or more, or W is 1; an O counts the vectors of V numbers that X has; PIECE_WARPS warps
// races     none: a warp owns its rows' columns; pieces meet as pieces.cuh says
//
// Instructions bound it. So a turn has few beside its products: one address, from vectors of X counted by the lane that
// loads the column; padding is no branch, but loads the bin's first row of X, and its products have a predicate; lanes
// beyond the last column compute too, and store nothing.
constexpr int LOADS = 8;  // of rows of X, under way together
template <class A, class Y, class I, class M, int B, bool HOLES, int G, int V, int W, int U, class O, class C>
__device__ void multiply(const C* col, const Opened<A>& data, const M* present, int n_blocks, const Y* x, O row_of_x,
                         Columns<Y, V, W, G * V> (&sum)[G]) {
    constexpr bool AHEAD = B == 1;
    constexpr int ROWS = WARP / G;                       // of a turn
    constexpr int TURNS = G * W < LOADS ? G : LOADS / W;  // whose loads are under way together
    const int group = lane_id() / G;
    auto origin = reinterpret_cast<const Vector<Y, V>*>(x);
    asm("" : "+l"(origin));  // one pointer, not a sum of two for each row
    C c_next[U];
    M bits_next[U];
    Stored<A> v_next[U][B];
    auto load = [&](int block) {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = block + u < n_blocks;
            c_next[u] = here ? stream(col + (int64)(block + u) * WARP) : C(-1);
            bits_next[u] = HOLES && here ? stream(present + (int64)(block + u) * WARP) : M(0);
#pragma unroll
            for (int j = 0; j < B; ++j)
                v_next[u][j] = here ? stream(data.slot + ((int64)(block + u) * B + j) * WARP) : Stored<A>{};
        }
    };
    if (AHEAD) load(0);
    for (int block = 0; block < n_blocks; block += U) {
        if (!AHEAD) load(block);
        O row[U];
        unsigned pads[U], bits[U];
        LookedUp<A> v[U][B];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool is_pad = is_padding<I>(c_next[u], 0);
            row[u] = is_pad ? O(0) : (O)c_next[u] * (B * row_of_x);
            pads[u] = G == 1 ? is_pad : __ballot_sync(FULL, is_pad) >> group;
            bits[u] = bits_next[u];
#pragma unroll
            for (int j = 0; j < B; ++j) v[u][j] = data.looked_up(v_next[u][j]);
        }
        if (AHEAD) load(block + U);
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int first = 0; first < G; first += TURNS) {
                const Vector<Y, V>* from[TURNS];
                unsigned pad[TURNS], marks[TURNS];
#pragma unroll
                for (int t = 0; t < TURNS; ++t) {
                    const int slot = (first + t) * ROWS + group;
                    from[t] = origin + (G == 1 ? row[u] : shuffle(row[u], slot));
                    pad[t] = pads[u] & 1u << (first + t) * ROWS;
                    marks[t] = !HOLES ? FULL : G == 1 ? bits[u] : shuffle(bits[u], slot);
                }
#pragma unroll
                for (int j = 0; j < B; ++j) {
                    Columns<Y, V, W, G * V> of_x[TURNS];
                    unsigned skip[TURNS];
#pragma unroll
                    for (int t = 0; t < TURNS; ++t) {
                        skip[t] = HOLES ? pad[t] | (~marks[t] & 1u << j) : pad[t];
                        // a hole may be beyond the last row of X
                        if (!HOLES || !skip[t])
#pragma unroll
                            for (int w = 0; w < W; ++w) of_x[t].vector[w] = cached(from[t] + (j * row_of_x + w * G));
                    }
#pragma unroll
                    for (int t = 0; t < TURNS; ++t) {
                        const Y value = data.template widened<Y>(G == 1 ? v[u][j] : shuffle(v[u][j], (first + t) * ROWS + group));
                        sum[first + t].add_product_unless(skip[t], value, of_x[t]);
                    }
                }
            }
    }
}

// thread blocks that a multiprocessor has room for at least: what is left of its registers is for loads under way
__device__ constexpr int blocks_at_once(int B, int G) { return B > 1 ? 2 : G == 8 ? 4 : G == 4 ? 6 : 8; }

template <class A, class Y, class I, class M, int B, bool HOLES, int G, int V, int W, int U, class O, bool CUT>
__global__ __launch_bounds__(PIECE_WARPS* WARP, blocks_at_once(B, G)) void
bbcsr_matmat(const Bbcsr<A, I, M> m, const Pieces<Y> pieces, int64 k, const Y* __restrict__ x, Y* __restrict__ y, Y alpha, Y beta,
             int update) {
    const Opened<A>& values = m.data.opened();
    const Piece<CUT> piece(pieces);
    const int lane = lane_id(), warp_of_block = threadIdx.x / WARP;
    const int64 bin = piece.is_one ? piece.row : (blockIdx.x - piece.n_thread_blocks(pieces)) * PIECE_WARPS + warp_of_block;
    if (bin >= m.n_bins) return;
    // of several vectors the last columns go with some before them, which are not stored twice
    const int64 begin = tile_of_block() * (W * G * V), at = (W == 1 ? begin : min(begin, k - W * G * V)) + lane % G * V;
    const Bin<A, I, M, B, HOLES> own(m, values, bin, lane);
    Columns<Y, V, W, G * V> sum[G] = {};
    const O row_of_x = (O)(k / V);
    x += min(at, k - V);  // a lane beyond the last column has that of another one
    int first = 0, n_blocks = own.n_blocks;
    if (piece.is_one) {
        const int of_warp = (piece.n_steps + PIECE_WARPS - 1) / PIECE_WARPS, end = min(piece.first() + piece.n_steps, n_blocks);
        first = min(piece.first() + warp_of_block * of_warp, end);
        n_blocks = min(of_warp, end - first);
    } else if (CUT && n_blocks > pieces.longest) {
        return;
    }
    const Opened<A> data = own.data + first * (int64)(B * WARP);
    const M* const present = HOLES ? own.present + first * (int64)WARP : nullptr;
    if (own.is_narrow())
        multiply<A, Y, I, M, B, HOLES, G, V, W, U>(own.narrow(m) + first * (int64)WARP, data, present, n_blocks,
                                                   x + own.origin() * k, row_of_x, sum);
    else
        multiply<A, Y, I, M, B, HOLES, G, V, W, U>(own.wide(m) + first * (int64)WARP, data, present, n_blocks, x, row_of_x, sum);
    if (piece.is_one && (!piece.template add<WARP>(pieces, sum) || warp_of_block)) return;
#pragma unroll
    for (int turn = 0; turn < G; ++turn) {
        const int64 row = bin * WARP + turn * (WARP / G) + lane / G;
        if (row < m.n_rows) sum[turn].store(y + row * k + at, at, k, alpha, beta, update, begin);
    }
}

// bbcsr_matmat_blocks: all bins, block row by block row
//
// mapping   S groups of G lanes, of one warp, a block row and W * G * V columns (tile_of_block() counts these): each group
//           every S-th block. A lane holds B sums for each of its columns, and a row of X is loaded once for all B rows.
//           The values of a block are loaded by the group's lanes, each its share, one block ahead, and passed on by
//           shuffles. Long block rows have a thread block for each of their `pieces`, the first of the grid, whose groups
//           share its blocks in the same way. Of the others a table may say how many groups share each
// traffic   as bbcsr_matmat, but a row of X for each column of a block instead of each nonzero
// requires  as bbcsr_matmat, but for holes; the same block columns in the rows of a block row; PIECE_WARPS warps
// races     none: the groups of a block row own its rows' columns; pieces meet as pieces.cuh says
//
// Holes are multiplied like entries: their 0 adds nothing, but where X is infinite or nan. Then a sum is nan, and is added
// up again by what is stored alone.

// how far a row's slots lie from those of another: 32 bits where both are in one bin
template <bool ARE_APART>
struct Distance {
    typedef int Type;
};
template <>
struct Distance<true> {
    typedef int64 Type;
};

// a block row's share of one group of lanes: every sharers-th block from `first` on
template <class A, class Y, class I, class M, int B>
struct BlockRow {
    Opened<A> data;
    const void* col;  // block columns as stored, of the first row
    const M* present;
    const Y* x;  // the lane's first column of the row that block columns count from
    I n_cols;    // rows of X from that one on
    int first, n_blocks, sharers, n_rows;
    bool is_narrow;
    int split, n_in_bin;  // rows from `split` on lie in the next bin, after n_in_bin blocks of the first one

    // from the first row's slot of a block, or its marks, to those of row i
    static constexpr bool MAY_BE_APART = WARP % B != 0;
    typedef typename Distance<MAY_BE_APART>::Type Offset;
    __device__ Offset slot_of_row(int i) const { return MAY_BE_APART && i >= split ? i + ((Offset)n_in_bin * B - 1) * WARP : i; }
    __device__ Offset marks_of_row(int i) const { return MAY_BE_APART && i >= split ? i + ((Offset)n_in_bin - 1) * WARP : i; }

    __device__ int64 bytes_of_columns(int blocks) const { return (is_narrow ? sizeof(uint16) : sizeof(I)) * blocks * (int64)WARP; }
    __device__ I stored(const void* from) const { return is_narrow ? (I)cached((const uint16*)from) : cached((const I*)from); }
    __device__ I stored(int block) const { return stored((const char*)col + bytes_of_columns(block)); }
    __device__ I padding() const { return is_narrow ? I(0xffff) : I(-1); }
    __device__ bool is_padding(I column) const { return is_narrow ? column == I(0xffff) : column < 0; }

    // A warp's groups go on together to the end of the longest, so that no lane waits for others where a group passes on
    // values. Each lane has `vectors` of a row of X. All lanes must call it
    template <bool HOLES, int G, int V, int W, int U>
    __device__ void add_blocks(int vectors, int64 k, Columns<Y, V, W, G * V> (&sum)[B]) const {
        constexpr bool MARKED = HOLES && !Values<A>::HOLES_ARE_0;  // the lane that loads a value looks whether it is one
        // a group that is over multiplies under a predicate, which is free for words, or adds 0 times 0
        constexpr bool PREDICATED = sizeof(Y) == 4;
        // values that a lane loads: number e = j * B + i of column j and row i, e % G its lane. Those that are not there
        // are others instead, for sums of rows that are not there
        constexpr int EACH = (B * B + G - 1) / G;
        Offset offset[EACH];
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int e = min(n * G + (int)threadIdx.x % G, B * B - 1);
            offset[n] = e / B * WARP + slot_of_row(max(min(e % B, n_rows - 1), 0));
        }
        const int64 row_bytes = k * sizeof(Y), columns_on = bytes_of_columns(sharers);
        auto next_column = (const char*)col + bytes_of_columns(first);
        auto next_slot = data.slot + first * (int64)(B * WARP);
        auto next_marks = present + first * (int64)WARP;
        int block = first;  // the one that is loaded next
        I c_next[U];
        Stored<A> v_next[U][EACH];
        unsigned marks_next[U];
        auto load = [&] {
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (block < n_blocks) {  // one branch for all: a condition for each load takes up to 1.25 times as long
                    c_next[u] = stored(next_column);
                    marks_next[u] = 0;
#pragma unroll
                    for (int n = 0; n < EACH; ++n) {
                        v_next[u][n] = cached(next_slot + offset[n]);
                        if (MARKED) {
                            const int e = min(n * G + (int)threadIdx.x % G, B * B - 1);
                            marks_next[u] |= (cached(next_marks + marks_of_row(max(min(e % B, n_rows - 1), 0))) >> e / B & 1u) << n;
                        }
                    }
                    next_slot += sharers * (B * WARP);
                    if (MARKED) next_marks += sharers * WARP;
                } else {
                    c_next[u] = padding();
#pragma unroll
                    for (int n = 0; n < EACH; ++n) v_next[u][n] = {};
                }
                next_column += columns_on;
                block += sharers;
            }
        };
        load();
#pragma unroll 1
        while (__any_sync(FULL, !is_padding(c_next[0]))) {
            bool is_over[U];
            unsigned marks[U];
            Columns<Y, V, W, G * V> of_x[U][B];
            LookedUp<A> v[U][EACH];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const I c = c_next[u];
                is_over[u] = is_padding(c);
                const int last = HOLES ? (int)min((I)B, n_cols - c * B) - 1 : B - 1;  // a hole may be beyond X
                auto row_of_x = (const char*)x + (int64)c * B * row_bytes;
#pragma unroll
                for (int j = 0; j < B; ++j) {
                    if (!PREDICATED) of_x[u][j] = {};
                    of_x[u][j].load_first(is_over[u] ? 0 : vectors, (const Y*)row_of_x);
                    if (j < last) row_of_x += row_bytes;
                }
#pragma unroll
                for (int n = 0; n < EACH; ++n) v[u][n] = data.looked_up(v_next[u][n]);
                marks[u] = marks_next[u];
            }
            if (is_over[U - 1]) block = n_blocks;
            load();
#pragma unroll
            for (int u = 0; u < U; ++u)
#pragma unroll
                for (int j = 0; j < B; ++j)
#pragma unroll
                    for (int i = 0; i < B; ++i) {
                        const int e = j * B + i;
                        Y value = data.template widened<Y>(shuffle(v[u][e / G], e % G, FULL, G));
                        if (MARKED && !(shuffle(marks[u], e % G, FULL, G) >> e / G & 1)) value = Y{};
                        if (PREDICATED)
                            sum[i].add_product_unless(is_over[u], value, of_x[u][j]);
                        else
                            sum[i].add_product(value, of_x[u][j]);
                    }
        }
    }

    // the same of what is stored alone, entry by entry
    template <int G, int V, int W>
    __device__ void add_entries(int vectors, int64 k, Columns<Y, V, W, G * V> (&sum)[B]) const {
#pragma unroll 1
        for (int block = first; block < n_blocks; block += sharers) {
            const I c = stored(block);
            if (is_padding(c)) break;
#pragma unroll
            for (int i = 0; i < B; ++i) {
                const unsigned marks = i < n_rows ? (unsigned)cached(present + block * (int64)WARP + marks_of_row(i)) : 0;
#pragma unroll 1
                for (int j = 0; j < B; ++j) {
                    if (!(marks >> j & 1)) continue;
                    Columns<Y, V, W, G * V> of_x;
                    of_x.load_first(vectors, x + ((int64)c * B + j) * k);
                    const auto of_entry = data.slot + (block * (int64)B + j) * WARP + slot_of_row(i);
                    sum[i].add_product(data.template decoded<Y>(cached(of_entry)), of_x);
                }
            }
        }
    }

    // all lanes must call it
    template <bool HOLES, int G, int V, int W, int U>
    __device__ void multiply(int vectors, int64 k, Columns<Y, V, W, G * V> (&sum)[B]) const {
        add_blocks<HOLES, G, V, W, U>(vectors, k, sum);
        if constexpr (HOLES) {
            bool is_wrong = false;
#pragma unroll
            for (int i = 0; i < B; ++i) is_wrong |= sum[i].has_nan(vectors);
            if (!is_wrong) return;
#pragma unroll
            for (int i = 0; i < B; ++i) sum[i] = {};
            add_entries<G, V, W>(vectors, k, sum);
        }
    }
};

template <class A, class Y, class I, class M, int B, bool HOLES, int G, int V, int W, int S, int U, bool CUT>
__global__ void bbcsr_matmat_blocks(const Bbcsr<A, I, M> m, const Pieces<Y> pieces, int64 k, const Y* __restrict__ x,
                                    Y* __restrict__ y, Y alpha, Y beta, int update) {
    const Opened<A>& values = m.data.opened();
    const Piece<CUT> piece(pieces);
    const int64 thread = (blockIdx.x - piece.n_thread_blocks(pieces)) * (int64)blockDim.x + threadIdx.x;
    const bool is_shared = CUT && pieces.share && !piece.is_one;  // as the table says
    int64 group = thread / (G * S);
    int sharers = S, part = threadIdx.x / G % S;
    if (piece.is_one) {
        group = piece.row;
        sharers = PIECE_WARPS * WARP / G;
        part = threadIdx.x / G;
    } else if (is_shared) {
        const Share share = pieces.share[thread / G];
        group = share.row;
        sharers = share.sharers;
        part = share.part;
    }
    const int64 at = (tile_of_block() * (W * G) + threadIdx.x % G) * V;
    const int64 row = group * B, bin = row / WARP;
    const bool is_here = group >= 0 && row < m.n_rows;
    BlockRow<A, Y, I, M, B> own = {values, nullptr, nullptr, x, 0, 0, 0, sharers, 0, false, 0, 0};
    if (is_here) {
        const int lane = (int)(row % WARP), n_rows = (int)min((int64)B, m.n_rows - row), split = WARP - lane;
        const Bin<A, I, M, B, HOLES> of(m, values, bin, lane);
        int n_blocks = of.n_blocks;
        if (own.MAY_BE_APART && n_rows > split) n_blocks = min(n_blocks, Bin<A, I, M, B, HOLES>(m, values, bin + 1, 0).n_blocks);
        const bool is_narrow = of.is_narrow();
        const int64 origin = is_narrow ? of.origin() : 0;
        const void* const col = is_narrow ? (const void*)of.narrow(m) : (const void*)of.wide(m);
        own = {of.data, col, of.present, x + origin * k + at, (I)(m.n_cols - origin), part, n_blocks, sharers, n_rows, is_narrow, split, of.n_blocks};
        if (piece.is_one) {
            own.first += piece.first();
            own.n_blocks = min(own.n_blocks, piece.first() + piece.n_steps);
        } else if (CUT && !is_shared && own.n_blocks > pieces.longest && !own.is_padding(own.stored((int)pieces.longest))) {
            own.n_rows = own.n_blocks = 0;  // thread blocks of its own have it
        }
    }
    Columns<Y, V, W, G * V> sum[B] = {};
    const int64 vectors = (k - at + G * V - 1) / (G * V);  // of this lane, in this tile and in all from here on
    own.template multiply<HOLES, G, V, W, U>((int)max(min(vectors, (int64)W), (int64)0), k, sum);
    if (piece.is_one) {
        if (!piece.template add<G>(pieces, sum) || threadIdx.x >= WARP) return;
    } else if (is_shared) {
        __syncwarp();
        add_sharers<G>(sum, sharers);
    } else if constexpr (S > 1) {
        __syncwarp();
        add_groups<G, G * S>(sum);
    }
    if (part) return;  // the first of those that share the block row has its sum
#pragma unroll
    for (int i = 0; i < B; ++i)
        if (i < own.n_rows) sum[i].store(y + (row + i) * k + at, at, k, alpha, beta, update);
}
