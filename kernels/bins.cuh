// The lengths of BBCSR's bins, before there are any tables.

// the column of no block, above all others
template <class I>
struct NoColumn {
    static constexpr I value = sizeof(I) == 4 ? (I)0x7fffffff : (I)0x7fffffffffffffffll;
};

// What a conversion counts of each bin. The first entry of either array of sizes is 0, so that prefix sums give where bins begin.
template <class I>
struct BinSizes {
    int64 n_bins;
    int64* n_values;  // (n_bins + 1,)
    int64* n_narrow;  // (n_bins + 1,): columns, of a narrow bin
    I* col_base;      // (n_bins,)

    // Of the bin of this warp, which has the blocks and the range of block columns of a row in each thread; both sizes.
    // Beyond the last bin nothing is written. All threads of the warp must call it.
    __device__ void put(int64 bin, int64 n_blocks, I low, I high, int block_size, int64 (&sizes)[2]) const {
        const int64 blocks = warp_max(n_blocks);
        low = warp_min(low);
        high = warp_max(high);
        if (bin == 0 && lane_id() == 0) n_values[0] = n_narrow[0] = 0;
        const bool narrow = high < 0 || (int64)high - low < NARROW - 1;  // 0xffff is padding
        sizes[0] = bin < n_bins ? blocks * block_size * WARP : 0;
        sizes[1] = bin < n_bins && narrow ? blocks * WARP : 0;
        if (lane_id() || bin >= n_bins) return;
        n_values[bin + 1] = sizes[0];
        n_narrow[bin + 1] = sizes[1];
        col_base[bin] = high < 0 ? I(0) : narrow ? low : I(-1);
    }
};
