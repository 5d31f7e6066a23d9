// A @ X: rows too long for the lanes that share a row otherwise.
//
// Each row, or block row, of a bin of more than `longest` steps has thread blocks of its own, one for each piece of
// `n_steps` steps, before those of the other bins. Where a row has several, each leaves its sum in memory, and the last to
// arrive adds all of them, in an order that does not depend on which it is.

constexpr int PIECE_WARPS = 4;  // of a thread block

// room for the sums of a thread block, where there are pieces
extern __shared__ uint4 sums_of_warps[];

template <class Y>
struct Pieces {
    const int64* bin;     // (n,) of each piece; those of a bin are neighbours
    const int64* number;  // (n,) of each piece, in its bin
    int64 n, n_cut, n_steps, longest;  // n_cut: pieces of bins that have several; they come first
    uint32* arrived;  // (tiles, n_cut, rows of a bin) at the first piece of each row: those that are done; 0 between products
    Y* sums;          // (tiles, n_cut, rows of a bin, numbers of a thread block)
};

// adds the sums of a warp's groups of G lanes, LANES lanes together, in the order of a tree. Each group then holds them
template <int G, int LANES, class Y, int V, int W, int STRIDE, int N>
__device__ void add_groups(Columns<Y, V, W, STRIDE> (&sum)[N], unsigned mask = FULL) {
#pragma unroll
    for (int apart = G; apart < LANES; apart *= 2)
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
            for (int w = 0; w < W; ++w)
#pragma unroll
                for (int v = 0; v < V; ++v) {
                    Y& own = sum[i].vector[w].at[v];
                    own = add(own, shuffle(own, lane_id() ^ apart, mask, WARP));
                }
}

// what the thread block has: a piece of one of the ROWS rows, or block rows, that a bin has; or something else, always
// unless CUT
template <int ROWS, bool CUT>
struct Piece {
    bool is_one;
    int64 bin, index;
    int row, number, n_steps;

    template <class Y>
    __device__ Piece(const Pieces<Y>& pieces)
        : is_one(CUT && blockIdx.x < pieces.n * ROWS), index(blockIdx.x / ROWS), row(blockIdx.x % ROWS), n_steps((int)pieces.n_steps) {
        bin = is_one ? pieces.bin[index] : 0;
        number = is_one ? (int)pieces.number[index] : 0;
    }

    template <class Y>
    static __device__ int64 n_thread_blocks(const Pieces<Y>& pieces) {
        return CUT ? pieces.n * ROWS : 0;
    }
    __device__ int first() const { return number * n_steps; }

    // how many pieces the row has, one at least: `col` are its columns, padding last. All threads must call it
    template <class I, class C>
    __device__ int of_row(const C* col, int most_steps) const {
        int found = 0;
#pragma unroll 1
        for (int begin = 0; begin < most_steps; begin += PIECE_WARPS * WARP * n_steps) {
            const int64 step = begin + threadIdx.x * (int64)n_steps;
            found += __syncthreads_count(step < most_steps && !is_padding<I>(col[step * WARP], 0));
        }
        return max(1, found);
    }

    // Adds the sums of the thread block's groups of G lanes, N each, then those of all pieces of the row. Whether the first
    // G lanes now hold the row's: these of the last piece to arrive. All threads must call it
    template <int G, class Y, int V, int W, int STRIDE, int N>
    __device__ bool add(const Pieces<Y>& pieces, Columns<Y, V, W, STRIDE> (&sum)[N], int n_pieces) const {
        constexpr int GROUPS = PIECE_WARPS * WARP / G, NUMBERS = W * G * V;
        const int64 tile = tile_of_block(), begin = (tile * pieces.n_cut + index - number) * ROWS + row;
        Y* const of_row = pieces.sums + begin * (N * NUMBERS) + threadIdx.x % G * V;
        auto of_piece = [&](int piece, int i) { return of_row + ((int64)piece * ROWS * N + i) * NUMBERS; };
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
        Y* const own = reinterpret_cast<Y*>(sums_of_warps) + threadIdx.x / WARP * (W * G * V) + threadIdx.x % G * V;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (lane_id() < G) sum[i].keep(own, G * V);
            __syncthreads();
            if (threadIdx.x < G)
#pragma unroll 1
                for (int warp = 1; warp < PIECE_WARPS; ++warp) {
                    Columns<Y, V, W, STRIDE> other;
                    other.take(own + warp * (W * G * V), G * V);
                    sum[i].add(other);
                }
            __syncthreads();
        }
    }
};
