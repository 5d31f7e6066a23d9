// CSR to BBCSR, and the row and column of every slot for the way back. B is the block size.

#include "bbcsr_tiles.cuh"
#include "bins.cuh"

// Merges the rows of one block row by block column. A block row has GROUP neighbouring threads of one warp (a power of
// two, at least B), one for each scalar row; threads without a row hold nothing. All threads of the warp must call
// next().
template <class P, class I, int B>
struct BlockRow {
    static constexpr int GROUP = B == 1 ? 1 : B <= 2 ? 2 : B <= 4 ? 4 : B <= 8 ? 8 : B <= 16 ? 16 : 32;
    static constexpr I NONE = NoColumn<I>::value;

    const I* indices;
    int64 from, end;
    int64 row;  // the scalar row, in range or not

    __device__ BlockRow(const P* ptr, const I* indices, int64 n_rows, int64 block_row, int within) : indices(indices) {
        row = block_row * B + within;
        const bool real = within < B && row < n_rows;
        from = real ? ptr[row] : 0;
        end = real ? ptr[row + 1] : 0;
    }

    // The smallest block column that is left, or NONE. This thread has `count` nonzeros in it, from `first` on.
    __device__ I next(int64& first, int& count) {
        const I mine = from < end ? indices[from] / B : NONE;
        I lowest = mine;
#pragma unroll
        for (int apart = GROUP / 2; apart; apart /= 2) lowest = min(lowest, shuffle(lowest, lane_id() ^ apart));
        first = from;
        count = 0;
        if (mine == lowest && lowest != NONE)
            while (from < end && indices[from] / B == lowest) {
                ++from;
                ++count;
            }
        return lowest;
    }
};

// bbcsr_count_holes: how many blocks every block row has, and their column range, by merging its rows. Where no block has a
// hole, csr_look tells that as it checks the CSR.
//
// mapping   GROUP threads a block row
// traffic   sizeof(I) a nonzero, 4 + 2 sizeof(I) a block row
// requires  canonical CSR
// races     none
template <class P, class I, int B>
__global__ void bbcsr_count_holes(const P* ptr, const I* indices, int64 n_rows, int64 n_block_rows, int* n_blocks,
                                  I* col_low, I* col_high) {
    constexpr int GROUP = BlockRow<P, I, B>::GROUP;
    const int64 thread = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    const int64 block_row = thread / GROUP;
    BlockRow<P, I, B> rows(ptr, indices, block_row < n_block_rows ? n_rows : 0, block_row, (int)(thread % GROUP));
    I low = rows.from < rows.end ? indices[rows.from] / B : BlockRow<P, I, B>::NONE;
    I high = rows.from < rows.end ? indices[rows.end - 1] / B : I(-1);
#pragma unroll
    for (int apart = GROUP / 2; apart; apart /= 2) {
        low = min(low, shuffle(low, lane_id() ^ apart));
        high = max(high, shuffle(high, lane_id() ^ apart));
    }
    int count = 0, inside;
    int64 first;
    while (__any_sync(FULL, rows.from < rows.end)) count += rows.next(first, inside) != BlockRow<P, I, B>::NONE;
    if (thread % GROUP == 0 && block_row < n_block_rows) {
        n_blocks[block_row] = count;
        col_low[block_row] = low;
        col_high[block_row] = high;
    }
}

// bbcsr_bins: length and column range of every bin
//
// mapping   one warp a bin, one thread a row
// traffic   4 + 2 sizeof(I) a row
// requires  states, which are cleared for the kernel that adds sizes up
// races     none: every number has one owner
template <class I>
__global__ void bbcsr_bins(const int* n_blocks, const I* col_low, const I* col_high, int64 n_rows, int block_size,
                           BinSizes<I> bins, int64* states, int n_states) {
    const int64 thread = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (thread < n_states) states[thread] = 0;
    const int64 bin = warp_id(), block_row = min(bin * WARP + lane_id(), n_rows - 1) / block_size;
    int64 sizes[2];
    bins.put(bin, n_blocks[block_row], col_low[block_row], col_high[block_row], block_size, sizes);
}

// Where the columns of bins go.
template <class I>
struct Columns {
    const int64* bin_rowptr;
    const int64* narrow_ptr;
    const I* col_base;
    int64* col_ptr;
    uint16* narrow;
    I* wide;
};

// Where those of one row of a bin go, that of `lane`, in blocks of `size`.
template <class I>
struct RowColumns {
    I base;
    uint16* narrow;
    I* wide;

    __device__ RowColumns(const Columns<I>& to, int64 bin, int lane, int size) : base(to.col_base[bin]) {
        const int64 of_narrow = to.narrow_ptr[bin] - to.narrow_ptr[0];
        const int64 start = base >= 0 ? of_narrow : to.bin_rowptr[bin] / size - of_narrow;
        if (lane == 0) to.col_ptr[bin] = start;
        narrow = to.narrow + start + lane;
        wide = to.wide + start + lane;
    }
    __device__ void put(int k, I column) const {
        const int64 slot = (int64)k * WARP;
        if (base >= 0)
            narrow[slot] = column < 0 ? (uint16)0xffff : (uint16)(column - base);
        else
            wide[slot] = column;
    }
};

// The columns of a bin, padding included, of blocks without holes, BATCH of them at a time. A thread has a row, and reads the
// columns of the first row of its block row: neighbours share them.
template <class P, class I, int B>
struct BinColumns : RowColumns<I> {
    static constexpr int BATCH = 8;

    const I* columns;
    int length, bin_length;  // of the row, of the bin
    I col[BATCH];

    __device__ BinColumns(int64 bin, const P* ptr, const I* indices, int64 n_rows, const Columns<I>& to)
        : RowColumns<I>(to, bin, lane_id(), B) {
        const int64 row = bin * WARP + lane_id(), first_row = row - row % B;
        length = row < n_rows ? (int)((ptr[row + 1] - ptr[row]) / B) : 0;
        columns = row < n_rows ? indices + ptr[first_row] : indices;
        bin_length = (int)((to.bin_rowptr[bin + 1] - to.bin_rowptr[bin]) / (WARP * B));
    }
    __device__ void load(int begin) {
#pragma unroll
        for (int u = 0; u < BATCH; ++u) col[u] = begin + u < length ? columns[(int64)(begin + u) * B] / B : I(-1);
    }
    __device__ void store(int begin) const {
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            if (begin + u >= bin_length) break;
            this->put(begin + u, col[u]);
        }
    }
};

// bbcsr_fill: every bin's values and columns, padding included, in blocks of 1
//
// mapping   one warp a bin: put_tile of bbcsr_tiles.cuh for values and for columns in turn
// traffic   reads sizeof(W) + sizeof(I) a nonzero, writes sizeof(W) + 2 or sizeof(I) a slot
// races     none: a warp owns its bin and its tile
template <class P, class I, class W, int WARPS>
__global__ void bbcsr_fill(const P* ptr, const I* indices, const W* data, int64 n_rows, int64 n_bins, Columns<I> to, W* values) {
    union Tile {
        W values[WARP][WARP + 1];  // one column more, so that reading down a column meets every bank
        I columns[WARP][WARP + 1];
    };
    __shared__ Tile tiles[WARPS];
    Tile& tile = tiles[threadIdx.x / WARP];
    const int64 bin = warp_id();
    if (bin >= n_bins) return;
    const BinColumns<P, I, 1> columns(bin, ptr, indices, n_rows, to);
    const int64 from = columns.columns - indices;
    const int length = columns.length, bin_length = columns.bin_length;
    values += to.bin_rowptr[bin] + lane_id();
    for (int begin = 0; begin < bin_length; begin += WARP) {
        put_tile(data, from, length, begin, bin_length, W{}, tile.values, [&](int k, W value) { values[(int64)k * WARP] = value; });
        put_tile(indices, from, length, begin, bin_length, I(-1), tile.columns, [&](int k, I col) { columns.put(k, col); });
    }
}

// bbcsr_columns: every bin's columns, of blocks without holes; bbcsr_values.cu writes the values
//
// mapping   one warp a bin
// traffic   reads sizeof(I) / B bytes a nonzero, writes 2 or sizeof(I) a block and row
// requires  no holes: rows of a block row have the same columns, and every B-th entry begins a block
// races     none: a warp owns its bin
template <class P, class I, int B>
__global__ void bbcsr_columns(const P* ptr, const I* indices, int64 n_rows, int64 n_bins, Columns<I> to) {
    const int64 bin = warp_id();
    if (bin >= n_bins) return;
    BinColumns<P, I, B> columns(bin, ptr, indices, n_rows, to);
    for (int begin = 0; begin < columns.bin_length; begin += columns.BATCH) {
        columns.load(begin);
        columns.store(begin);
    }
}

// bbcsr_fill_holes: every bin's values, columns and presence bits, padding included, of any matrix
//
// mapping   GROUP threads a block row, one thread a scalar row
// traffic   reads sizeof(A) + sizeof(I) a nonzero, writes sizeof(A) + (2 or sizeof(I)) / B + sizeof(M) / B a slot
// requires  a thread for every row of the last bin, also for rows past the end of the matrix
// races     none: a thread owns its row's slots
template <class P, class I, class A, class M, int B>
__global__ void bbcsr_fill_holes(const P* ptr, const I* indices, const A* values, int64 n_rows, int64 n_bins, Columns<I> to,
                                 A* data, M* present) {
    constexpr int GROUP = BlockRow<P, I, B>::GROUP;
    const int64 thread = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    const int within = (int)(thread % GROUP);
    BlockRow<P, I, B> rows(ptr, indices, n_rows, thread / GROUP, within);
    const int64 bin = rows.row / WARP;
    const bool owner = within < B && bin < n_bins;
    const int lane = (int)(rows.row % WARP);
    const int64 first_slot = owner ? to.bin_rowptr[bin] : 0;
    const int n_blocks = owner ? (int)((to.bin_rowptr[bin + 1] - first_slot) / (WARP * B)) : 0;
    const RowColumns<I> columns(to, owner ? bin : 0, owner ? lane : WARP, B);
    data += first_slot + lane;
    present += first_slot / B + lane;

    int block = 0;
    auto put = [&](I block_col, int64 first, int count) {
        columns.put(block, block_col);
        uint32 bits = 0;
#pragma unroll
        for (int j = 0; j < B; ++j) {
            A value{};
            if (count > 0 && indices[first] % B == j) {
                value = values[first];
                bits |= 1u << j;
                ++first;
                --count;
            }
            data[((int64)block * B + j) * WARP] = value;
        }
        present[(int64)block * WARP] = (M)bits;
        ++block;
    };
    int64 first;
    int count;
    while (__any_sync(FULL, rows.from < rows.end)) {
        const I block_col = rows.next(first, count);
        // rows past the matrix's last row are padding, even where their block row has blocks
        if (block_col != BlockRow<P, I, B>::NONE && owner && rows.row < n_rows) put(block_col, first, count);
    }
    while (block < n_blocks) put(I(-1), 0, 0);
}
