// The tables of BBCSR as kernels see them.

template <class A, class I, class M>
struct Bbcsr {
    const int64* bin_rowptr;
    Values<A> data;
    const I* col_base;
    const int64* col_ptr;
    const uint16* col_narrow;
    const I* col_wide;
    const M* present;  // null where no block has a hole
    int64 n_rows, n_cols, n_bins;
};

// a block column as stored: narrow ones count from the bin's base
template <class I>
__device__ bool is_padding(uint16 stored, I) {
    return stored == 0xffff;
}
template <class I>
__device__ bool is_padding(I stored, I) {
    return stored < 0;
}

// where a bin lies in the tables: its slots from that of `lane` on
template <class A, class I, class M, int B, bool HOLES>
struct Bin {
    int n_blocks;
    I base;         // its smallest block column; -1 where columns are wide
    int64 columns;  // where they begin, in col_narrow or in col_wide
    Opened<A> data;
    const M* present;

    __device__ Bin(const Bbcsr<A, I, M>& m, const Opened<A>& values, int64 bin, int lane)
        : data(values + (m.bin_rowptr[bin] + lane)) {
        const int64 first = m.bin_rowptr[bin];
        n_blocks = (int)((m.bin_rowptr[bin + 1] - first) / (WARP * B));
        base = m.col_base[bin];
        columns = m.col_ptr[bin] + lane;
        present = HOLES ? m.present + first / B + lane : nullptr;
    }

    __device__ bool is_narrow() const { return base >= 0; }
    // block columns as stored, and the column of A that narrow ones count from
    __device__ const uint16* narrow(const Bbcsr<A, I, M>& m) const { return m.col_narrow + columns; }
    __device__ const I* wide(const Bbcsr<A, I, M>& m) const { return m.col_wide + columns; }
    __device__ int64 origin() const { return (int64)base * B; }
};
