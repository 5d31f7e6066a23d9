// Coordinates in any order, sorted by row, then column, then as they come.
//
// An entry is a key of 64 bits: where its row begins, its column, and its number among the coordinates. Rows that begin within
// one stretch of SPAN places are a bucket. Entries are put to their buckets first, in any order: all buckets grow at once, at
// places so few that the cache gathers whole lines. Then a thread block has a bucket in its shared memory, puts keys to their
// rows, and sorts each row. Rows of more than LONG entries are put to their places, and sorted by others.

#include "prefix.cuh"

// What a key holds, from its high bits on: the first place of its row, less whole stretches; the column; the number.
struct Bits {
    int of_col, of_number;

    __device__ uint64 key(uint32 offset, int col, int64 number) const {
        return ((uint64)offset << of_col | (uint32)col) << of_number | (uint64)number;
    }
    __device__ uint32 offset(uint64 key) const { return (uint32)(key >> (of_col + of_number)); }
    __device__ uint64 place(uint64 key) const { return key >> of_number; }
    // an entry of a sorted row: AGAIN where the one before it has the same place, the column, and the number in 32 bits
    __device__ uint64 entry(uint64 key, bool again) const {
        const uint64 col = key >> of_number & ((1ull << of_col) - 1);
        return (again ? AGAIN : 0) | col << 32 | (key & ((1ull << of_number) - 1));
    }
    static constexpr uint64 AGAIN = 1ull << 63;
};

// csr_count_rows: count[r + 1] += entries of row r
//
// mapping   threads stride over the entries; lanes of a warp that have one row count together
// traffic   4 bytes an entry, and a sector of count for each row that a warp meets
// requires  rows in range; count (n_rows + 1,) is zeroed by the host
// races     sums of integers, taken atomically
__global__ void csr_count_rows(const int* row, int64 n, uint64* count) {
    for (int64 first = blockIdx.x * (int64)blockDim.x; first < n; first += gridDim.x * (int64)blockDim.x) {
        const int64 k = first + threadIdx.x;
        const unsigned active = __ballot_sync(FULL, k < n);
        if (k >= n) continue;
        const unsigned peers = __match_any_sync(active, row[k]);
        if (lane_id() == __ffs(peers) - 1) atomicAdd(count + row[k] + 1, (uint64)__popc(peers));
    }
}

// csr_find_buckets: where each bucket begins, and the rows of more than `most` entries: found[0] of them, in any order
//
// mapping   one thread a row
// traffic   8 bytes a row
// requires  offsets from the counts of rows; found is zeroed by the host. Of a bucket in which no row begins nothing is written
// races     one writer a bucket: its first row; a place of `longs` is taken by an atomic
__global__ void csr_find_buckets(const int64* indptr, int64 n_rows, int span, int64 most, int64* begins, int* longs,
                                 uint64* found) {
    const int64 row = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    const int64 from = indptr[row], end = indptr[row + 1];
    if (from < indptr[n_rows] && (row == 0 || from / span != indptr[row - 1] / span)) begins[from / span] = from;
    if (end - from > most) longs[atomicAdd(found, 1ull)] = (int)row;
}

// csr_put_into_buckets: the keys of each bucket, and of each long row, in any order
//
// mapping   threads stride over the entries
// traffic   16 bytes an entry, a sector of offsets, and two atomics on what the cache holds
// requires  count has the length of each row (from 1 on), `filled` is zeroed by the host
// races     an atomic gives each place to one entry
__global__ void csr_put_into_buckets(const int* row, const int* col, int64 n, const int64* indptr, int span, int64 most,
                                     Bits bits, const int64* begins, uint32* filled, uint64* count, uint64* keys) {
    constexpr int U = 4;
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 first = blockIdx.x * (int64)blockDim.x + threadIdx.x; first < n; first += U * stride) {
        int r[U], c[U];
        int64 place[U], from[U], length[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 k = min(first + u * stride, n - 1);
            r[u] = row[k];
            c[u] = col[k];
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            from[u] = indptr[r[u]];
            length[u] = indptr[r[u] + 1] - from[u];
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (first + u * stride >= n) break;
            const int64 bucket = from[u] / span;
            if (length[u] > most)
                place[u] = from[u] + (int64)atomicAdd(count + r[u] + 1, ~0ull) - 1;
            else
                place[u] = begins[bucket] + atomicAdd(filled + bucket, 1u);
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (first + u * stride < n) keys[place[u]] = bits.key((uint32)(from[u] % span), c[u], first + u * stride);
    }
}

// Keys in ascending order: e = j * WARP + lane of the warp has the number e. Groups of fewer lanes than a warp sort on their own
// where `size` says so. K. E. Batcher, "Sorting networks and their applications", AFIPS 1968: the bitonic network, whose stages
// begin by comparing mirrored places, so that all comparisons go one way.
template <int K>
__device__ void sort_in_registers(uint64 (&key)[K], int size_of_group) {
    const int lane = lane_id();
#pragma unroll
    for (int size = 2; size <= K * WARP; size *= 2) {
        if (K == 1 && size > size_of_group) break;
        uint64 other[K];
#pragma unroll
        for (int j = 0; j < K; ++j) other[j] = shuffle(key[size > WARP ? j ^ (size / WARP - 1) : j], lane ^ ((size - 1) & (WARP - 1)));
#pragma unroll
        for (int j = 0; j < K; ++j) {
            const bool is_low = size > WARP ? !(j & (size / WARP / 2)) : !(lane & (size / 2));
            key[j] = is_low ? min(key[j], other[j]) : max(key[j], other[j]);
        }
#pragma unroll
        for (int apart = size / 4; apart; apart /= 2) {
#pragma unroll
            for (int j = 0; j < K; ++j) {
                if (apart >= WARP) {
                    if (j & (apart / WARP)) continue;
                    const uint64 low = min(key[j], key[(j | (apart / WARP)) % K]);
                    key[(j | (apart / WARP)) % K] = max(key[j], key[(j | (apart / WARP)) % K]);
                    key[j] = low;
                } else {
                    const uint64 beside = shuffle(key[j], lane ^ apart);
                    key[j] = lane & apart ? max(key[j], beside) : min(key[j], beside);
                }
            }
        }
    }
}

// Sorts a row in registers and writes it; whether it has a column twice. A group of `size` lanes has a row, K == 1, or the warp.
template <int K>
__device__ bool sort_row(const uint64* own, int length, int size, const Bits& bits, uint64* to) {
    constexpr uint64 NONE = ~0ull;
    const int lane = lane_id(), within = K == 1 ? lane & (size - 1) : lane;
    uint64 key[K];
#pragma unroll
    for (int j = 0; j < K; ++j) key[j] = j * WARP + within < length ? own[j * WARP + within] : NONE;
    sort_in_registers(key, size);
    bool twice = false;
    uint64 before = 0;
#pragma unroll
    for (int j = 0; j < K; ++j) {
        const uint64 left = shuffle(key[j], (lane - 1) & (WARP - 1));
        const uint64 of_lane = lane ? left : before;  // of lane 0: the last one of the lanes' numbers before
        before = left;
        const int e = j * WARP + within;
        if (e >= length) continue;
        const bool again = e && bits.place(of_lane) == bits.place(key[j]);
        twice |= again;
        to[e] = bits.entry(key[j], again);
    }
    return twice;
}

// The same of a longer row, in shared memory: beyond its end are keys above all others.
__device__ inline bool sort_long_row(uint64* own, int length, const Bits& bits, uint64* to) {
    const int lane = lane_id();
    for (int size = 2; size < 2 * length; size *= 2)
        for (int apart = size / 2; apart; apart /= 2) {
            __syncwarp();
            const bool mirrored = apart == size / 2;
            for (int i = lane; i < length; i += WARP) {
                const int other = mirrored ? i ^ (size - 1) : i ^ apart;
                if (other <= i || other >= length) continue;
                const uint64 low = own[i], high = own[other];
                if (low > high) {
                    own[i] = high;
                    own[other] = low;
                }
            }
        }
    __syncwarp();
    bool twice = false;
    for (int i = lane; i < length; i += WARP) {
        const bool again = i && bits.place(own[i - 1]) == bits.place(own[i]);
        twice |= again;
        to[i] = bits.entry(own[i], again);
    }
    return twice;
}

// csr_sort_buckets: the entries of each bucket, row by row and ascending; found[1] = 1 where a row has
// a column twice
//
// mapping   a thread block a bucket; a warp a row, or several short ones
// traffic   16 bytes an entry
// requires  keys that csr_put_into_buckets has put; found is zeroed by the host
// races     the order within a row is that of atomics, until it is sorted; all keys differ. Whoever writes the flag writes 1
template <int SPAN, int LONG, int THREADS>
__global__ void csr_sort_buckets(const int64* begins, const uint32* filled, Bits bits, uint64* keys, uint64* found) {
    constexpr int CAP = SPAN + LONG, MOST = CAP / THREADS, WARPS = THREADS / WARP;
    __shared__ uint64 own[CAP];
    __shared__ uint32 length[SPAN];
    __shared__ uint16 rows[SPAN];
    __shared__ int n_rows, longest;
    const int n = (int)filled[blockIdx.x], lane = lane_id();
    if (!n) return;
    const int64 begin = begins[blockIdx.x];
    const int base = (int)(begin % SPAN);
    keys += begin;
    for (int i = threadIdx.x; i < SPAN; i += THREADS) length[i] = 0;
    if (threadIdx.x == 0) n_rows = longest = 0;
    __syncthreads();
    uint64 key[MOST];
    uint32 place[MOST];
#pragma unroll
    for (int u = 0; u < MOST; ++u) {
        const int k = u * THREADS + threadIdx.x;
        key[u] = k < n ? keys[k] : 0;
    }
#pragma unroll
    for (int u = 0; u < MOST; ++u)
        if (u * THREADS + threadIdx.x < n) place[u] = bits.offset(key[u]) - base + atomicAdd(length + bits.offset(key[u]), 1u);
    __syncthreads();
#pragma unroll
    for (int u = 0; u < MOST; ++u)
        if (u * THREADS + threadIdx.x < n) own[place[u]] = key[u];
    for (int i = threadIdx.x; i < SPAN; i += THREADS) {
        const unsigned have = __ballot_sync(FULL, length[i] > 0);
        const int most = warp_max((int)length[i]);
        int before = 0;
        if (lane == 0 && have) {
            before = atomicAdd(&n_rows, __popc(have));
            atomicMax(&longest, most);
        }
        before = shuffle(before, 0) + __popc(have & ((1u << lane) - 1));
        if (have >> lane & 1) rows[before] = (uint16)i;
    }
    __syncthreads();
    const int size = longest <= 8 ? 8 : longest <= 16 ? 16 : WARP, each = WARP / size;
    bool twice = false;
    for (int i = threadIdx.x / WARP * each; i < n_rows; i += WARPS * each) {
        const int mine = i + lane / size;
        const int row = mine < n_rows ? rows[mine] : 0, count = mine < n_rows ? (int)length[row] : 0, at = mine < n_rows ? row - base : 0;
        if (count <= WARP)
            twice |= sort_row<1>(own + at, count, size, bits, keys + at);
        else if (count <= 2 * WARP)
            twice |= sort_row<2>(own + at, count, size, bits, keys + at);
        else if (count <= 4 * WARP)
            twice |= sort_row<4>(own + at, count, size, bits, keys + at);
        else if (count <= 8 * WARP)
            twice |= sort_row<8>(own + at, count, size, bits, keys + at);
        else
            twice |= sort_long_row(own + at, count, bits, keys + at);
    }
    if (__any_sync(FULL, twice) && lane == 0) found[1] = 1;
}

// csr_find_places: starts[i] = where the i-th different place begins, and after the last of them n; found[0] = how many they are
//
// mapping   one thread block a tile of THREADS * U entries, in the order in which blocks begin
// traffic   8 bytes an entry and 8 a place
// requires  sorted entries; `state` is zeroed by the host, as for prefix_sums
// races     none: see sum_before_tile
template <int THREADS, int U>
__global__ void csr_find_places(const uint64* entries, int64 n, uint64* state, int64* starts, int64* found) {
    __shared__ int64 tile, before;
    if (threadIdx.x == 0) tile = atomicAdd(state, 1ull);
    __syncthreads();
    const int64 first = (tile * THREADS + threadIdx.x) * U;
    int64 sum[U], total;
    unsigned begins = 0;
#pragma unroll
    for (int u = 0; u < U; ++u) {
        sum[u] = first + u < n && !(entries[first + u] & Bits::AGAIN);
        begins |= (unsigned)sum[u] << u;
    }
    sums_of_block<THREADS, U>(sum, total);
    if (threadIdx.x == 0) before = sum_before_tile(state + 1, tile, total);
    __syncthreads();
#pragma unroll
    for (int u = 0; u < U; ++u)
        if (begins >> u & 1) starts[before + sum[u] - 1] = first + u;
    if (threadIdx.x == 0 && (tile + 1) * THREADS * U >= n) {
        starts[before + total] = n;
        found[0] = before + total;
    }
}

// csr_add_places: the column of each place, and the sum of the values that its entries number, in their order. float16 is summed
// in float.
//
// mapping   one thread a place
// traffic   8 bytes an entry and a sector of val, 12 and sizeof(A) a place
// races     none: each sum has one owner
template <class A>
__global__ void csr_add_places(const uint64* entries, const int64* starts, int64 n_places, const A* val, int* indices, A* data) {
    const int64 place = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (place >= n_places) return;
    typedef typename Summed<A>::Type Sum;
    const int64 begin = starts[place], end = starts[place + 1];
    const uint64 entry = entries[begin];
    Sum sum = val[(uint32)entry];
    for (int64 i = begin + 1; i < end; ++i) sum = add(sum, Sum(val[(uint32)entries[i]]));
    indices[place] = (int)(entry >> 32);
    data[place] = Summed<A>::rounded(sum);
}

// csr_take: the column of each entry, and the value that it numbers, where no place comes twice. W is a word of a value's size.
//
// mapping   threads stride over the keys
// traffic   12 bytes and sizeof(W) an entry, and a sector of data
// races     none
template <class W>
__global__ void csr_take(const uint64* entries, int64 n, const W* data, int* indices, W* taken) {
    constexpr int U = 4;
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 first = blockIdx.x * (int64)blockDim.x + threadIdx.x; first < n; first += U * stride) {
        uint64 entry[U];
        W value[U];
#pragma unroll
        for (int u = 0; u < U; ++u) entry[u] = entries[min(first + u * stride, n - 1)];
#pragma unroll
        for (int u = 0; u < U; ++u) value[u] = data[(uint32)entry[u]];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 k = first + u * stride;
            if (k >= n) break;
            indices[k] = (int)(entry[u] >> 32);
            taken[k] = value[u];
        }
    }
}
