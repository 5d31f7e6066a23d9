// A CSR as it comes from its owner: whether it is canonical, and all else that a conversion wants to know before it allocates
// anything. One launch for all of it, which writes to the host's memory.

#include "bins.cuh"
#include "distinct.cuh"
#include "prefix.cuh"
#include "windows.cuh"

// Words that the host reads, 0 at first; positions are stored as MAX - position, so that 0 says that there is none
enum Found {
    FIRST,            // of the offsets,
    LAST,             // and the last one
    BAD_ROW,          // the first where offsets decrease
    BAD_POSITION,     // the first column out of range
    UNSORTED,         // 1: some row's columns do not increase
    HOLE,             // 1: blocks have holes, or something is wrong
    PADDED,           // slots, were bins padded to their longest row
    NARROW_SLOTS,     // columns of narrow bins
    EMPTY,            // empty rows
    BEYOND_SHORTEST,  // MAX - entries of the shortest row
    LONGEST,          // entries of the longest row
    SAMPLE,           // of the values: two numbers of 32 bits
    WINDOWS,          // nonzeros of windows, those in narrow bins, the longest rows of bins, summed, sectors and lines of x of
                      // bins, and for each block size the blocks of single rows
    MORE = WINDOWS + 5 + 8,  // what kernels before this one have counted
    ALL_WORDS = MORE + 16,
    DONE = ALL_WORDS,  // thread blocks that are done
};
[[maybe_unused]] constexpr int64 MAX = 0x7fffffffffffffffll;
[[maybe_unused]] constexpr int THREADS = 256, WARPS = THREADS / WARP, MOST_PART = 4096;
// thread blocks that look at blocks of 2 or more, a multiprocessor: those of sm_75 hold 1024 threads
#if __CUDA_ARCH__ < 800
[[maybe_unused]] constexpr int AT_ONCE = 4;
#else
[[maybe_unused]] constexpr int AT_ONCE = 5;
#endif

// Columns of a sector of x, and how many sectors are told apart: a bit of a table each. A line of x is a byte of it.
[[maybe_unused]] constexpr int SECTOR = 8, SECTORS = 1 << 16;

template <class P, class I>
struct Csr {
    const P* indptr;
    const I* indices;
    int64 n_rows, n_cols, nnz;
};

// where a row's entries are
struct Offsets {
    int64 from, end;
};

// none where the offsets would lead astray, or beyond the last row
template <class P, class I>
__device__ Offsets entries_of(const Csr<P, I>& m, int64 row) {
    if (row >= m.n_rows) return {0, 0};
    const int64 from = m.indptr[row], end = m.indptr[row + 1];
    return 0 <= from && from <= end && end <= m.nnz ? Offsets{from, end} : Offsets{0, 0};
}

// Offsets, row lengths, the rows of each bin that are not empty where these are asked for, and the same for its sizes; for blocks
// of B the rows of a block row should have the same columns. One thread a row, one warp a bin; blocks stride over rows, as what
// each adds to the totals waits for what others add.
template <class P, class I, int B>
__device__ void look_at_rows(const Csr<P, I>& m, int64 block, int64 n_blocks, const BinSizes<I>& bins, int64* n_filled,
                             uint64* found) {
    if (block == 0 && threadIdx.x == 0) {
        found[FIRST] = m.indptr[0];
        found[LAST] = m.indptr[m.n_rows];
        if (n_filled) n_filled[0] = 0;
    }
    int64 totals[3] = {}, most = 0, beyond_least = 0;
    for (int64 row = block * THREADS + threadIdx.x; row - lane_id() < m.n_rows; row += n_blocks * THREADS) {
        if (row < m.n_rows && m.indptr[row] > m.indptr[row + 1]) atomicMax(found + BAD_ROW, (uint64)(MAX - row));
        const Offsets at = entries_of(m, row);
        const int64 length = at.end - at.from, longest = warp_max(length), shortest = warp_min(row < m.n_rows ? length : MAX);
        int64 sizes[2] = {};
        if (bins.n_values) {
            const I low = length ? m.indices[at.from] / B : NoColumn<I>::value, high = length ? m.indices[at.end - 1] / B : I(-1);
            bins.put(row / WARP, length / B, low, high, B, sizes);
        }
        const int filled = __popc(__ballot_sync(FULL, length > 0));
        if (n_filled && lane_id() == 0) n_filled[row / WARP + 1] = filled;
        totals[0] += WARP * longest;
        totals[1] += sizes[1];
        totals[2] += __popc(__ballot_sync(FULL, row < m.n_rows)) - filled;
        most = max(most, longest);
        beyond_least = max(beyond_least, MAX - shortest);
    }
    __shared__ int64 of_block[2];
    if (threadIdx.x < 2) of_block[threadIdx.x] = 0;
    add_to_totals<3>(totals, found + PADDED);  // all threads wait in it
    if (lane_id() == 0) {
        atomicMax(of_block, most);
        atomicMax(of_block + 1, beyond_least);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicMax(found + LONGEST, (uint64)of_block[0]);
        atomicMax(found + BEYOND_SHORTEST, (uint64)of_block[1]);
    }
}

// A bin of a window: its nonzeros, whether it is narrow, its longest row, the different sectors and lines of x that it needs, and
// for each block size the blocks of each row. A warp has a row in turn; long rows are shared by the block.
template <class P, class I>
__device__ void look_at_window(const Csr<P, I>& m, int64 first, uint64 sizes, uint64* found) {
    constexpr int MOST = 8, LONG = 512;
    __shared__ unsigned seen[SECTORS / WARP];
    for (int i = threadIdx.x; i < SECTORS / WARP; i += THREADS) seen[i] = 0;
    __syncthreads();
    const Offsets own = entries_of(m, first + lane_id());
    const bool has_any = own.from < own.end;
    const int64 low = warp_min(has_any ? (int64)m.indices[own.from] : MAX);
    const int64 high = warp_max(has_any ? (int64)m.indices[own.end - 1] : -1ll), nonzeros = warp_sum(own.end - own.from);
    const int64 longest = warp_max(own.end - own.from);
    int n_blocks[MOST] = {};
    for (int r = 0; r < WARP; ++r) {
        const int64 from = shuffle(own.from, r), end = shuffle(own.end, r);
        const bool is_long = end - from > LONG;
        if (!is_long && r % WARPS != threadIdx.x / WARP) continue;
        for (int64 at = from + (is_long ? threadIdx.x : lane_id()); at < end; at += is_long ? THREADS : WARP) {
            const I col = m.indices[at], before = at > from ? m.indices[at - 1] : I(0);
#pragma unroll
            for (int k = 0; k < MOST; ++k) {
                const int size = size_at(sizes, k);
                if (size) n_blocks[k] += at == from || col / size != before / size;
            }
            const unsigned sector = (unsigned)(col / SECTOR) % SECTORS;  // of any column, as it may be wrong
            if (at == from || col / SECTOR != before / SECTOR) atomicOr(seen + sector / WARP, 1u << sector % WARP);
        }
    }
    __syncthreads();
    int n_sectors = 0, n_lines = 0;
    for (int i = threadIdx.x; i < SECTORS / WARP; i += THREADS) {
        n_sectors += __popc(seen[i]);
        n_lines += __popc(__vsetne4(seen[i], 0));
    }
    const bool is_first = threadIdx.x < WARP;
    add_to_totals<5>({is_first ? nonzeros : 0, is_first && high - low < NARROW ? nonzeros : 0, is_first ? longest : 0,
                      warp_sum((int64)n_sectors), warp_sum((int64)n_lines)},
                     found + WINDOWS);
#pragma unroll
    for (int k = 0; k < MOST; ++k) {
        const int64 of_warp = warp_sum((int64)n_blocks[k]);
        if (lane_id() == 0 && of_warp) atomicAdd(found + WINDOWS + 5 + k, (uint64)of_warp);
    }
}

// the first i in [0, n) with ptr[i] >= key, n if there is none; searched by a warp, 32 parts at a time
template <class P>
__device__ int64 lower_bound_of_warp(const P* ptr, int64 n, int64 key) {
    int64 low = 0, high = n;
    while (low < high) {
        const int64 step = (high - low + WARP - 1) / WARP, probe = low + (lane_id() + 1) * step - 1;
        const int n_less = __popc(__ballot_sync(FULL, probe < high && ptr[probe] < key));
        high = min(high, low + (n_less + 1) * step - 1);
        low += n_less * step;
    }
    return low;
}

// Marks by a bit each where rows begin among a warp's `count` nonzeros from `begin` on.
template <class P, class I>
__device__ void mark_rows(const Csr<P, I>& m, int64 begin, int count, unsigned* begins) {
    constexpr int MOST_ROWS = 4096;  // that a warp looks at before it looks for one that is not empty
    const int lane = lane_id();
    for (int64 first = lower_bound_of_warp(m.indptr, m.n_rows, begin);;) {
        const int64 end = min(first + MOST_ROWS, m.n_rows);
        bool is_over = end == m.n_rows;
        for (int64 row = first + lane; row < end; row += WARP) {
            const int64 at = m.indptr[row] - begin;
            if (at >= count) {
                is_over = true;
                break;
            }
            if (at >= 0) atomicOr(begins + at / WARP, 1u << at % WARP);
        }
        if (__any_sync(FULL, is_over)) return;
        first = max(end, lower_bound_of_warp(m.indptr, m.n_rows, (int64)m.indptr[end - 1] + 1));  // empty rows may be many
    }
}

// Do columns lie in range, and increase in every row? A warp has `part` nonzeros, and marks first where rows begin among them.
template <class P, class I>
__device__ void look_at_columns(const Csr<P, I>& m, int64 block, int part, uint64* found) {
    constexpr int RUN = 4, RUNS = 4;  // columns that a thread loads at once and compares; such loads in flight
    struct alignas(16) Run {
        I col[RUN];
    };
    __shared__ unsigned marks[WARPS][MOST_PART / WARP];  // one bit for each nonzero: a row begins there
    unsigned* begins = marks[threadIdx.x / WARP];
    const int lane = lane_id();
    const int64 begin = (block * WARPS + threadIdx.x / WARP) * part;
    if (begin >= m.nnz) return;
    const int count = (int)min((int64)part, m.nnz - begin);
    const I* columns = m.indices + begin;
    const bool aligned = (uint64)columns % 16 == 0;
    Run run[RUNS];
    auto load = [&](int group) {
#pragma unroll
        for (int g = 0; g < RUNS; ++g) {
            const int first = group + (g * WARP + lane) * RUN;
            if (aligned && first + RUN <= count) {
                run[g] = *reinterpret_cast<const Run*>(columns + first);
            } else {
#pragma unroll
                for (int j = 0; j < RUN; ++j) run[g].col[j] = first + j < count ? columns[first + j] : I(0);
            }
        }
    };
    load(0);  // under way while row starts are searched
    for (int word = lane; word < part / WARP; word += WARP) begins[word] = 0;
    __syncwarp();
    mark_rows(m, begin, count, begins);
    __syncwarp();
    const uint64 limit = (uint64)m.n_cols;  // as an unsigned number a negative column is too large as well
    int first_bad = MOST_PART;
    bool unsorted = false;
    I last = begin ? columns[-1] : I(-1);  // the column before the group
    for (int group = 0; group < count; group += RUNS * RUN * WARP) {
        if (group) load(group);
#pragma unroll
        for (int g = 0; g < RUNS; ++g) {
            const int first = group + (g * WARP + lane) * RUN;
            I before = shuffle(run[g].col[RUN - 1], (lane - 1) & (WARP - 1));
            if (lane == 0) before = last;
            last = shuffle(run[g].col[RUN - 1], WARP - 1);
            const unsigned begin_bits = first < count ? begins[first / WARP] >> first % WARP : 0;
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                const I col = run[g].col[j];
                if (first + j < count) {
                    if ((uint64)(int64)col >= limit) first_bad = min(first_bad, first + j);
                    unsorted |= before >= col && !(begin_bits >> j & 1);
                }
                before = col;
            }
        }
    }
    if (first_bad < MOST_PART) atomicMax(found + BAD_POSITION, (uint64)(MAX - (begin + first_bad)));
    if (__any_sync(FULL, unsorted) && lane == 0) found[UNSORTED] = 1;
}

// Have all rows of a block row the same columns, which increase, lie in range, and are whole blocks? Then the CSR is canonical.
// Warps stride over block rows, each reads the rows of one side by side; the next one's offsets are under way meanwhile.
template <class P, class I, int B>
__device__ void look_at_blocks(const Csr<P, I>& m, int64 block, int64 n_blocks, uint64* found) {
    constexpr int BATCH = B <= 2 ? 4 : B <= 3 ? 3 : B <= 6 ? 2 : 1, OTHERS = B <= 6 ? B : 4;  // loads in flight
    const int lane = lane_id();
    const int64 stride = n_blocks * WARPS * B;
    int64 row = (block * WARPS + threadIdx.x / WARP) * B;
    Offsets next = {0, 0};
    auto load = [&](int64 first) {
        const int64 own = min(first + min(lane, B - 1), m.n_rows - 1);
        if (first < m.n_rows) next = {m.indptr[own], m.indptr[own + 1]};
    };
    for (load(row); row < m.n_rows; row += stride) {
        const Offsets at = next;
        load(row + stride);
        const int rows = (int)min((int64)B, m.n_rows - row);
        const int64 first = shuffle(at.from, 0), length = shuffle(at.end, 0) - first;
        bool full = __all_sync(FULL, at.end - at.from == length) && 0 <= first && 0 <= length && length <= m.n_cols &&
                    length % B == 0 && length <= m.nnz && first <= m.nnz - rows * length;
        const I* columns = m.indices + first;
        const I* rows_of[B <= 6 ? B : 1];
#pragma unroll
        for (int i = 0; i < (B <= 6 ? B : 1); ++i) rows_of[i] = columns + min(i, rows - 1) * length;
        const uint64 limit = (uint64)m.n_cols;
        typedef decltype(I(0) + 0u) Count;  // of 32 bits where they do
        const Count size = (Count)length;
        for (Count begin = lane; full && begin < size; begin += BATCH * WARP) {
            I col[BATCH], before[BATCH];
            bool alike = true;
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                const Count k = min(begin + u * WARP, size - 1);
                col[u] = columns[k];
                before[u] = k ? columns[k - 1] : I(-1);
#pragma unroll OTHERS
                for (int i = 1; i < B; ++i)
                    alike &= (B <= 6 ? rows_of[i % (B <= 6 ? B : 1)] : columns + min(i, rows - 1) * length)[k] == col[u];
            }
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                const Count k = min(begin + u * WARP, size - 1);
                alike &= (uint64)(int64)col[u] < limit && (Count)col[u] % B == k % B &&
                         (k % B ? before[u] == col[u] - 1 : before[u] < col[u]);
            }
            full = alike;
        }
        if (__any_sync(FULL, !full)) {
            if (lane == 0) found[HOLE] = 1;
            return;
        }
    }
}

// prefix sums of `n` counts that other blocks have written, by one block
__device__ inline void put_sums(const int64* counts, int64 n, int64* sums) {
    constexpr int U = 4;
    int64 next[U], before = 0;
    auto load = [&](int64 first) {
#pragma unroll
        for (int u = 0; u < U; ++u) next[u] = first + u < n ? fresh(counts + first + u) : 0;
    };
    load(threadIdx.x * U);
    for (int64 first = threadIdx.x * U; first - threadIdx.x * U < n; first += THREADS * U) {
        int64 sum[U], total;
#pragma unroll
        for (int u = 0; u < U; ++u) sum[u] = next[u];
        load(first + THREADS * U);
        sums_of_block<THREADS, U>(sum, total);
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (first + u < n) sums[first + u] = before + sum[u];
        before += total;
        __syncthreads();
    }
}

// All that is asked for; every field has 64 bits.
template <class P, class I>
struct Look {
    Csr<P, I> csr;
    BinSizes<I> bins;  // n_values null: none
    int64* n_filled;   // (n_bins + 1,), the first one 0: rows of each bin that are not empty; or null
    const int64* counts;  // all of these sizes and rows, one after the other
    int64 n_counts;
    int64* sums;    // of them, where they are so few that one block adds them up; else null,
    int64* states;  // and this is cleared for the kernel that does
    int64 n_states;
    int64 n_windows, n_counted;
    uint64 sizes;
    const void* values;
    int64 value_size;  // 0: no sample
    int64 are_double;
    int64 part;     // nonzeros that a warp checks
    int64 n_blocks;  // thread blocks that look at columns
    uint64* found;  // all 0, as it is again afterwards
    uint64* host;   // gets the words of it
};

// csr_look: offsets, rows, bins, windows, a sample of the values, and columns: see the functions above
//
// mapping   each thread block does one of these: what takes long comes first. B above 1 asks for blocks of B instead of
//           columns. The block that is done last adds up sizes, and passes on the words
// traffic   sizeof(P) bytes a row and sizeof(I) a nonzero; where bins are asked for, two columns a row
// requires  indptr has n_rows + 1 entries, which may be wrong: nothing is read by wrong ones
// races     sums and maxima of integers, taken atomically, and flags: whoever writes one writes 1; bins have one owner. What
//           blocks write they write before they count themselves as done
template <class P, class I, int B>
__global__ __launch_bounds__(THREADS, B == 1 ? 4 : AT_ONCE) void csr_look(Look<P, I> look) {
    constexpr int BINS = ROWS / WARP, N_SAMPLED = 512;
    const Csr<P, I>& m = look.csr;
    uint64* found = look.found;
    int64 block = blockIdx.x;
    for (int64 i = block * THREADS + threadIdx.x; i < look.n_states; i += gridDim.x * (int64)THREADS) look.states[i] = 0;
    const int64 of_windows = look.n_counted * BINS, of_values = look.value_size > 0;
    if (block < of_windows) {
        const int64 first = first_row(block / BINS, look.n_windows, look.n_counted) + block % BINS * WARP;
        look_at_window(m, first, look.sizes, found);
    } else if ((block -= of_windows) < of_values) {
        int* sample = reinterpret_cast<int*>(found + SAMPLE);
        sample_values<N_SAMPLED, THREADS>(look.values, m.nnz, (int)look.value_size, look.are_double, sample);
    } else if ((block -= of_values) < look.n_blocks) {
        if (B == 1)
            look_at_columns(m, block, (int)look.part, found);
        else
            look_at_blocks<P, I, B>(m, block, look.n_blocks, found);
    } else {
        const int64 n_blocks = gridDim.x - of_windows - of_values - look.n_blocks;
        look_at_rows<P, I, B>(m, block - look.n_blocks, n_blocks, look.bins, look.n_filled, found);
    }
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicAdd(found + DONE, 1ull) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (look.sums) put_sums(look.counts, look.n_counts, look.sums);
    for (int i = threadIdx.x; i <= DONE; i += THREADS) {
        if (i < ALL_WORDS) look.host[i] = fresh(found + i);
        found[i] = 0;
    }
}
