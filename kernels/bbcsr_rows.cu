// BBCSR's tables back to a canonical CSR: rows as they lie in the bins, padding and holes left out.

// The tables but for the values. M is a word of a block's mask.
template <class I, class M>
struct Bins {
    const int64* bin_rowptr;
    const I* col_base;
    const int64* col_ptr;
    const uint16* col_narrow;
    const I* col_wide;
    const M* present;  // null: there are no holes
    int64 n_bins, block_size;
};

// A row of a bin: its slots in turn.
template <class I, class M>
struct Row {
    const Bins<I, M>& m;
    int64 first, start;  // of the bin's slots, and of its columns
    int n_slots;
    I base;

    __device__ Row(const Bins<I, M>& m, int64 bin) : m(m) {
        first = m.bin_rowptr[bin];
        start = m.col_ptr[bin];
        n_slots = (int)((m.bin_rowptr[bin + 1] - first) / WARP);
        base = m.col_base[bin];
    }

    __device__ int64 slot(int k) const { return first + (int64)k * WARP + lane_id(); }

    __device__ int64 place(int block) const { return (int64)block * WARP + lane_id(); }

    // the block column of a block; -1 for padding
    __device__ I block_column(int block) const {
        const int64 at = place(block);
        if (base < 0) return m.col_wide[start + at];
        const uint16 narrow = m.col_narrow[start + at];
        return narrow == 0xffff ? I(-1) : base + (I)narrow;
    }

    // the column of slot k; -1 for padding and holes
    __device__ I column(int k) const {
        const int size = (int)m.block_size, block = k / size, j = k - block * size;
        const I stored = block_column(block);
        const bool is_there = !m.present || m.present[first / size + place(block)] >> j & 1;
        return stored >= 0 && is_there ? stored * size + j : I(-1);
    }
};

// bbcsr_row_lengths: length[row - from] for the rows [from, to)
//
// mapping   one warp a bin, one thread a row
// traffic   2 or sizeof(I) bytes a block and row; 8 bytes a row
// races     none
template <class I, class M>
__global__ void bbcsr_row_lengths(const Bins<I, M> m, int64 from, int64 to, int64* length) {
    const int64 bin = warp_id(), row = bin * WARP + lane_id();
    if (bin >= m.n_bins) return;
    const Row<I, M> of(m, bin);
    int count = 0;
#pragma unroll 4
    for (int k = 0; k < of.n_slots; ++k) count += of.column(k) >= 0;
    if (row >= from && row < to) length[row - from] = count;
}

// bbcsr_blocks_of_rows: how many blocks each row of the bins has, padding left out
//
// mapping   one warp a bin, one thread a row, which searches for the first padding
// traffic   4 bytes a row, and what the search reads
// races     none
template <class I, class M>
__global__ void bbcsr_blocks_of_rows(const Bins<I, M> m, int* n_blocks) {
    const int64 bin = warp_id();
    if (bin >= m.n_bins) return;
    const Row<I, M> of(m, bin);
    int low = 0, high = of.n_slots / (int)m.block_size;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (of.block_column(middle) < 0)
            high = middle;
        else
            low = middle + 1;
    }
    n_blocks[bin * WARP + lane_id()] = low;
}

// bbcsr_rows: columns and values of the rows [from, to), row by row
//
// mapping   one warp a bin, one thread a row; U slots are loaded before the first is stored
// traffic   2 or sizeof(I), and sizeof(W) bytes a slot are read, sizeof(I) + sizeof(W) a nonzero written
// races     none
template <class I, class M, class W, int U>
__global__ void bbcsr_rows(const Bins<I, M> m, int64 from, int64 to, const int64* __restrict__ indptr,
                           const W* __restrict__ values, I* indices, W* data) {
    const int64 bin = warp_id(), row = bin * WARP + lane_id();
    if (bin >= m.n_bins) return;
    const Row<I, M> of(m, bin);
    const bool is_wanted = row >= from && row < to;
    int64 at = is_wanted ? indptr[row - from] : 0;
    for (int begin = 0; begin < of.n_slots; begin += U) {
        I col[U];
        W value[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int k = min(begin + u, of.n_slots - 1);
            col[u] = begin + u < of.n_slots ? of.column(k) : I(-1);
            value[u] = values[of.slot(k)];
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (!is_wanted || col[u] < 0) continue;
            indices[at] = col[u];
            data[at] = value[u];
            ++at;
        }
    }
}
