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

// Asks L2 for the tables of a bin, if it is one, and for where they lie: a warp's lanes together. Whoever multiplies it later
// waits for L2 and not for memory.
__device__ inline void ask_for(const void* from, int64 bytes) {
    constexpr int LINE = 128;
#pragma unroll 1
    for (int64 at = lane_id() * LINE; at < bytes; at += WARP * LINE)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)from + at));
}
template <class A, class I, class M>
__device__ void ask_for_bin(const Bbcsr<A, I, M>& m, const Opened<A>& values, int64 bin) {
    if (bin >= m.n_bins) return;
    const int64 first = cached(m.bin_rowptr + bin), n = cached(m.bin_rowptr + bin + 1) - first, columns = cached(m.col_ptr + bin);
    ask_for(values.slot + first, n * Values<A>::BYTES);
    if (cached(m.col_base + bin) >= 0)
        ask_for(m.col_narrow + columns, n * (int)sizeof(uint16));
    else
        ask_for(m.col_wide + columns, n * (int)sizeof(I));
}
