// A @ X: rows of different lengths.
//
// A row, or block row, of more than `longest` steps has thread blocks of its own, one for each piece of `n_steps` steps,
// before those of the others. Where a row has several, each leaves its sum in memory, and the last to arrive adds all of
// them, in an order that does not depend on which it is. Of the others a table may say how many groups of lanes share each
// (Share), so that all groups have about as much to do.

constexpr int PIECE_WARPS = 4;  // of a thread block

// room for the sums of a thread block, where there are pieces
extern __shared__ uint4 sums_of_warps[];

struct PieceOfRow {
    int64 row;     // counted as the kernel does: rows of all bins, block rows of all bins, or bins
    int number;    // of the piece, in its row
    int n_pieces;  // of the row
};

// what a group of lanes does: every sharers-th block of a block row, from `part` on
struct Share {
    int row;  // as that of PieceOfRow; -1: nothing
    uint16 part, sharers;
};

template <class Y>
struct Pieces {
    const PieceOfRow* piece;  // (n,); those of a row are neighbours
    int64 n, n_cut, n_steps, longest;  // n_cut: pieces of rows that have several; they come first
    uint32* arrived;     // (tiles, n_cut) at the first piece of each row: those that are done; 0 between products
    Y* sums;             // (tiles, n_cut, numbers of a thread block)
    const Share* share;  // of each group of the thread blocks that have no piece, most sharers first; null: all rows in turn
};

// whether a row has more than `steps` steps: `col` are its columns, padding last, `most_steps` of them
template <class I, class C>
__device__ bool is_longer(const C* col, int64 steps, int64 most_steps) {
    return most_steps > steps && !is_padding<I>(cached(col + steps * WARP), 0);
}

// adds to a lane's sums those of the lane `apart` from it, where it `adds`
template <class Y, int V, int W, int STRIDE, int N>
__device__ void add_other(Columns<Y, V, W, STRIDE> (&sum)[N], int apart, bool adds = true) {
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int w = 0; w < W; ++w)
#pragma unroll
            for (int v = 0; v < V; ++v) {
                Y& own = sum[i].vector[w].at[v];
                const Y other = shuffle(own, lane_id() ^ apart);
                if (adds) own = add(own, other);
            }
}

// adds the sums of a warp's groups of G lanes, LANES lanes together, in the order of a tree. Each group then holds them
template <int G, int LANES, class Sums>
__device__ void add_groups(Sums& sum) {
#pragma unroll
    for (int apart = G; apart < LANES; apart *= 2) add_other(sum, apart);
}

// The same where neighbouring groups share a row by their own numbers, powers of two, the largest of the warp first: adds the
// sums of the `sharers` groups.
template <int G, class Sums>
__device__ void add_sharers(Sums& sum, int sharers) {
    const int most = __shfl_sync(FULL, sharers, 0);
#pragma unroll 1
    for (int apart = 1; apart < most; apart *= 2) add_other(sum, apart * G, apart < sharers);
}

// what the thread block has: a piece of a row, or something else, always unless CUT
template <bool CUT>
struct Piece {
    bool is_one;
    int64 row, index;
    int number, n_pieces, n_steps;

    template <class Y>
    __device__ Piece(const Pieces<Y>& pieces)
        : is_one(CUT && blockIdx.x < pieces.n), row(0), index(blockIdx.x), number(0), n_pieces(1), n_steps((int)pieces.n_steps) {
        if (!is_one) return;
        const PieceOfRow of = pieces.piece[index];
        row = of.row;
        number = of.number;
        n_pieces = of.n_pieces;
    }

    template <class Y>
    static __device__ int64 n_thread_blocks(const Pieces<Y>& pieces) {
        return CUT ? pieces.n : 0;
    }
    __device__ int first() const { return number * n_steps; }

    // Adds the sums of the thread block's groups of G lanes, N each, then those of all pieces of the row. Whether the first
    // G lanes now hold the row's: these of the last piece to arrive. All threads must call it
    template <int G, class Y, int V, int W, int STRIDE, int N>
    __device__ bool add(const Pieces<Y>& pieces, Columns<Y, V, W, STRIDE> (&sum)[N]) const {
        constexpr int GROUPS = PIECE_WARPS * WARP / G, NUMBERS = W * G * V;
        const int64 tile = tile_of_block(), begin = tile * pieces.n_cut + index - number;
        Y* const of_row = pieces.sums + begin * (N * NUMBERS) + threadIdx.x % G * V;
        auto of_piece = [&](int piece, int i) { return of_row + ((int64)piece * N + i) * NUMBERS; };
        __shared__ bool is_last;
        if (threadIdx.x == 0) is_last = n_pieces == 1;
#pragma unroll 1
        while (true) {
            add_warps<G>(sum);
            if (is_last) return true;
            if (threadIdx.x < G) {
#pragma unroll
                for (int i = 0; i < N; ++i) sum[i].keep(of_piece(number, i), G * V);
                __threadfence();
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                is_last = atomicAdd(pieces.arrived + begin, 1u) == n_pieces - 1;
                if (is_last) pieces.arrived[begin] = 0;
                __threadfence();
            }
            __syncthreads();
            if (!is_last) return false;
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i] = {};
#pragma unroll 1
            for (int piece = threadIdx.x / G; piece < n_pieces; piece += GROUPS)
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    Columns<Y, V, W, STRIDE> other;
                    other.take(of_piece(piece, i), G * V);
                    sum[i].add(other);
                }
        }
    }

  private:
    // all threads' sums, in the first G lanes
    template <int G, class Y, int V, int W, int STRIDE, int N>
    static __device__ void add_warps(Columns<Y, V, W, STRIDE> (&sum)[N]) {
        __syncwarp();
        add_groups<G, WARP>(sum);
        constexpr int NUMBERS = W * G * V;
        Y* const of_lane = reinterpret_cast<Y*>(sums_of_warps) + threadIdx.x % G * V;
        auto of_warp = [&](int warp, int i) { return of_lane + (warp * N + i) * NUMBERS; };
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (lane_id() < G) sum[i].keep(of_warp(threadIdx.x / WARP, i), G * V);
        __syncthreads();
        if (threadIdx.x < G)
#pragma unroll
            for (int i = 0; i < N; ++i)
#pragma unroll 1
                for (int warp = 1; warp < PIECE_WARPS; ++warp) {
                    Columns<Y, V, W, STRIDE> other;
                    other.take(of_warp(warp, i), G * V);
                    sum[i].add(other);
                }
        __syncthreads();
    }
};
