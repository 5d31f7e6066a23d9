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
