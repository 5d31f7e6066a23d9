// Coordinates in any order, sorted by row, then column, then as they come.
//
// Rows that follow one another are a bucket. Entries are put to their buckets, in any order; where these are many, to coarse ones
// first, as memory is written fast in few places at a time only. Then a thread block has a bucket in its shared memory, puts keys
// to their rows, and sorts each row. Values go with the keys, as it takes longer to fetch them from anywhere. Of a bucket that
// does not fit, others sort the keys.

#include "prefix.cuh"

// A key in memory has, from its high bits on, its row's number in the bucket, its column, and its number among the coordinates. In
// shared memory it has its place in the bucket instead of the row, in the lowest bits.
struct Keys {
    int of_col, of_number, of_place;  // bits
    uint32 scale;                     // 2^32 times the buckets for each row

    __device__ uint32 bucket(int row) const { return __umulhi((uint32)row, scale); }
    __device__ uint32 row_in_bucket(int row) const { return (uint32)row * scale / scale; }
    __device__ int64 first_row(int64 bucket) const { return (int64)((((uint64)bucket << 32) + scale - 1) / scale); }

    __device__ uint64 key(int64 row, int col, int64 number) const {
        return ((uint64)row << of_col | (uint32)col) << of_number | (uint64)number;
    }
    __device__ int row(uint64 key) const { return (int)(key >> (of_col + of_number)); }

    __device__ uint64 with_place(uint64 key, int place) const {
        return (key & ((1ull << (of_col + of_number)) - 1)) << of_place | (uint32)place;
    }
    __device__ uint32 col(uint64 with_place) const { return (uint32)(with_place >> (of_number + of_place)); }
    __device__ uint32 number(uint64 with_place) const { return (uint32)(with_place >> of_place & ((1ull << of_number) - 1)); }
    __device__ int place(uint64 with_place) const { return (int)(with_place & ((1ull << of_place) - 1)); }
};

// csr_count_buckets: count[b + 1] += entries of bucket b
//
// mapping   threads stride over the entries; a block counts in shared memory
// traffic   4 bytes an entry
// requires  count (n_buckets + 1,) is zeroed by the host
// races     sums of integers, taken atomically
__global__ void csr_count_buckets(const int* row, int64 n, Keys keys, int n_buckets, uint64* count) {
    constexpr int U = 8;
    extern __shared__ uint32 counted[];
    for (int b = threadIdx.x; b < n_buckets; b += blockDim.x) counted[b] = 0;
    __syncthreads();
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 first = blockIdx.x * (int64)blockDim.x + threadIdx.x; first < n; first += U * stride) {
        int r[U];
#pragma unroll
        for (int u = 0; u < U; ++u) r[u] = row[min(first + u * stride, n - 1)];
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (first + u * stride < n) atomicAdd(counted + keys.bucket(r[u]), 1u);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < n_buckets; b += blockDim.x)
        if (counted[b]) atomicAdd(count + b + 1, (uint64)counted[b]);
}

// Entries on their way to their buckets: as they are given, as they lie in coarse buckets, and as keys. Values are null where none
// go with the entries.
template <class W>
struct Entries {
    const int* row;
    const int* col;
    const W* values;
    uint64* places;  // row and column, 32 bits each
    uint32* numbers;
    W* with_places;
    uint64* keys;
    W* with_keys;
};

// csr_put_into_buckets: entries to their buckets, in any order. It is the FIRST and the LAST step; or the first puts them to coarse
// buckets, of 2^shift buckets each, and the last one from there to their buckets. W is a word of a value's size
//
// mapping   a thread block has a tile of THREADS * U entries, of one coarse bucket in the second step. It counts them by buckets, at
//           most THREADS; takes so many places of each at once; and brings what goes there side by side in shared memory, so that
//           it is written together
// traffic   16 bytes and 2 sizeof(W) an entry; 20 and 2 sizeof(W) in each of two steps
// requires  `taken`, a number a bucket, is zeroed by the host; shared memory for a tile of values, or of words of 8 bytes
// races     atomics give each place to one entry
template <class W, bool FIRST, bool LAST, int THREADS, int U>
__global__ __launch_bounds__(THREADS, 2) void csr_put_into_buckets(Entries<W> entries, int64 n, Keys to_keys, int n_buckets,
                                                                   int shift, const int64* begins, uint32* taken) {
    constexpr int TILE = THREADS * U;
    extern __shared__ __align__(16) uint64 staged[];
    __shared__ uint16 bucket_of[TILE];
    __shared__ uint32 counted[THREADS], from_tile[THREADS];
    __shared__ int64 chosen[2];
    const int t = threadIdx.x, n_coarse = (n_buckets + (1 << shift) - 1) >> shift;
    auto coarse = [&](int c) { return begins[min(c << shift, n_buckets)]; };
    int64 sum[1], total;
    int64 first = blockIdx.x * (int64)TILE, end = min(first + TILE, n);
    int base = 0;
    if (!FIRST) {  // tiles of one coarse bucket after the other
        const int64 tiles = t < n_coarse ? (coarse(t + 1) - coarse(t) + TILE - 1) / TILE : 0;
        if (t == 0) chosen[0] = -1;
        sum[0] = tiles;
        sums_of_block<THREADS, 1>(sum, total);
        if (sum[0] - tiles <= blockIdx.x && blockIdx.x < sum[0]) {
            chosen[0] = t;
            chosen[1] = coarse(t) + (blockIdx.x - (sum[0] - tiles)) * TILE;
        }
        __syncthreads();
        if (chosen[0] < 0) return;
        base = (int)chosen[0] << shift;
        first = chosen[1];
        end = min(first + TILE, coarse((int)chosen[0] + 1));
    }
    const int coarser = FIRST && !LAST ? shift : 0, count = (int)(end - first);
    counted[t] = 0;
    __syncthreads();
    uint64 place[U];
    uint32 at[U], number[U];
    W value[U];
    const W* source = FIRST ? entries.values : entries.with_places;
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const int64 k = min(first + u * THREADS + t, end - 1);
        place[u] = FIRST ? (uint64)(uint32)entries.row[k] << 32 | (uint32)entries.col[k] : entries.places[k];
        number[u] = FIRST ? (uint32)k : entries.numbers[k];
        if (source) value[u] = source[k];
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const bool is_entry = u * THREADS + t < count;
        const uint32 bucket = (to_keys.bucket((int)(place[u] >> 32)) >> coarser) - base;
        const unsigned entries_of_warp = __ballot_sync(FULL, is_entry);
        int alike;
        __match_all_sync(FULL, bucket, &alike);
        uint32 before = 0;
        if (alike) {  // as of coordinates that are almost in order: one atomic, not 32 that wait for each other
            if (lane_id() == 0) before = atomicAdd(counted + bucket, (uint32)__popc(entries_of_warp));
            before = shuffle(before, 0) + __popc(entries_of_warp & ((1u << lane_id()) - 1));
        } else if (is_entry) {
            before = atomicAdd(counted + bucket, 1u);
        }
        at[u] = bucket << 16 | before;
    }
    __syncthreads();
    const uint32 own = counted[t];
    sum[0] = own;
    sums_of_block<THREADS, 1>(sum, total);
    counted[t] = (uint32)sum[0] - own;  // now where a bucket begins in the tile
    if (own) from_tile[t] = (uint32)begins[(base + t) << coarser] + atomicAdd(taken + base + t, own) - counted[t];
    __syncthreads();
#pragma unroll
    for (int u = 0; u < U; ++u) {
        if (u * THREADS + t >= count) break;
        const uint32 bucket = at[u] >> 16;
        at[u] = counted[bucket] + (at[u] & 0xffff);
        bucket_of[at[u]] = (uint16)bucket;
        const int row = (int)(place[u] >> 32);
        staged[at[u]] = LAST ? to_keys.key(to_keys.row_in_bucket(row), (int)(uint32)place[u], number[u]) : place[u];
    }
    __syncthreads();
    uint64* to = LAST ? entries.keys : entries.places;
    for (int i = t; i < count; i += THREADS) to[from_tile[bucket_of[i]] + (uint32)i] = staged[i];
    __syncthreads();
    if (!LAST) {
        uint32* numbers = reinterpret_cast<uint32*>(staged);
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (u * THREADS + t < count) numbers[at[u]] = number[u];
        __syncthreads();
        for (int i = t; i < count; i += THREADS) entries.numbers[from_tile[bucket_of[i]] + (uint32)i] = numbers[i];
        __syncthreads();
    }
    if (!source) return;
    W* values = reinterpret_cast<W*>(staged);
#pragma unroll
    for (int u = 0; u < U; ++u)
        if (u * THREADS + t < count) values[at[u]] = value[u];
    __syncthreads();
    W* target = LAST ? entries.with_keys : entries.with_places;
    for (int i = t; i < count; i += THREADS) target[from_tile[bucket_of[i]] + (uint32)i] = values[i];
}

// Numbers in ascending order: e = j * WARP + lane of the warp has the one with number e. Groups of `size_of_group` lanes sort on
// their own, K == 1. K. E. Batcher, "Sorting networks and their applications", AFIPS 1968: the bitonic network, whose stages
// begin by comparing mirrored places, so that all comparisons go one way.
template <int K>
__device__ void sort_in_registers(uint32 (&number)[K], int size_of_group) {
    const int lane = lane_id();
#pragma unroll
    for (int size = 2; size <= K * WARP; size *= 2) {
        if (K == 1 && size > size_of_group) break;
        uint32 other[K];
#pragma unroll
        for (int j = 0; j < K; ++j)
            other[j] = shuffle(number[size > WARP ? j ^ (size / WARP - 1) : j], lane ^ ((size - 1) & (WARP - 1)));
#pragma unroll
        for (int j = 0; j < K; ++j) {
            const bool is_low = size > WARP ? !(j & (size / WARP / 2)) : !(lane & (size / 2));
            number[j] = is_low ? min(number[j], other[j]) : max(number[j], other[j]);
        }
#pragma unroll
        for (int apart = size / 4; apart; apart /= 2) {
#pragma unroll
            for (int j = 0; j < K; ++j) {
                if (apart >= WARP) {
                    if (j & (apart / WARP)) continue;
                    const uint32 low = min(number[j], number[(j | (apart / WARP)) % K]);
                    number[(j | (apart / WARP)) % K] = max(number[j], number[(j | (apart / WARP)) % K]);
                    number[j] = low;
                } else {
                    const uint32 beside = shuffle(number[j], lane ^ apart);
                    number[j] = lane & apart ? max(number[j], beside) : min(number[j], beside);
                }
            }
        }
    }
}

// The key of e - 1, of the lane or the register before.
template <int K>
__device__ uint64 left_of(const uint64 (&key)[K], int j) {
    const uint64 in_register = shuffle(key[j], (lane_id() - 1) & (WARP - 1)), before = shuffle(key[j ? j - 1 : 0], WARP - 1);
    return lane_id() ? in_register : before;
}

// Up to K * WARP keys in shared memory in ascending order: key[j] becomes number j * WARP + within. They are sorted by the high bits
// of their columns first, as 32 bits with the place that each key has. Neighbours that are in the wrong order then, of one column
// or of columns that differ in low bits, are exchanged until there are none.
template <int K>
__device__ void sort_keys(const uint64* own, int length, int size_of_group, const Keys& keys, uint64 (&key)[K]) {
    constexpr int SHIFT = K == 1 ? 5 : K == 2 ? 6 : 7;
    static_assert(K << 5 <= 1 << SHIFT, "places fit");
    const int lane = lane_id(), within = K == 1 ? lane & (size_of_group - 1) : lane;
    const int of_low = max(keys.of_col + SHIFT - 32, 0);
    uint32 brief[K];
#pragma unroll
    for (int j = 0; j < K; ++j) {
        const int e = j * WARP + within;
        brief[j] = e < length ? keys.col(own[e]) >> of_low << SHIFT | e : ~0u;
    }
    sort_in_registers(brief, size_of_group);
#pragma unroll
    for (int j = 0; j < K; ++j) key[j] = j * WARP + within < length ? own[brief[j] & ((1 << SHIFT) - 1)] : ~0ull;
    bool wrong = false;
#pragma unroll
    for (int j = 0; j < K; ++j) {
        const uint64 left = left_of(key, j);
        wrong |= j * WARP + within && j * WARP + within < length && left > key[j];
    }
    while (__any_sync(FULL, wrong)) {
        wrong = false;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int partner = (odd ? (lane % 2 ? lane + 1 : lane - 1) : lane ^ 1) & (WARP - 1);
            uint64 beside[K];
#pragma unroll
            for (int j = 0; j < K; ++j) {  // the last lane's partner has the next register, and the other way round
                const int sent = odd && lane == 0 ? min(j + 1, K - 1) : odd && lane == WARP - 1 ? max(j - 1, 0) : j;
                uint64 mine = key[j];
#pragma unroll
                for (int i = 0; i < K; ++i)
                    if (i == sent) mine = key[i];
                beside[j] = shuffle(mine, partner);
            }
#pragma unroll
            for (int j = 0; j < K; ++j) {
                const int e = j * WARP + within;
                const bool is_low = e % 2 == odd;
                const bool exchanges = is_low ? e + 1 < length && beside[j] < key[j] : e && e < length && beside[j] > key[j];
                if (exchanges) key[j] = beside[j];
                wrong |= exchanges;
            }
        }
    }
}

// Where sorted entries go. TAKES: their columns and values; else words that have one bit where the place is that of the entry
// before, the column, and the number in 32 bits.
template <class W, bool TAKES>
struct Output {
    uint64* entries;
    const W* with_keys;  // from the bucket's first on, once it is known
    int* indices;
    W* data;

    __device__ void put(int64 at, uint64 key, bool again, const Keys& keys) const {
        if (TAKES) {
            indices[at] = (int)keys.col(key);
            data[at] = with_keys[keys.place(key)];
        } else {
            entries[at] = (again ? 1ull << 63 : 0) | (uint64)keys.col(key) << 32 | keys.number(key);
        }
    }
};

// Sorts a row of up to K * WARP keys, and writes it from `at` on; whether it has a column twice.
template <int K, class O>
__device__ bool sort_row(const uint64* own, int length, int size, const Keys& keys, const O& output, int64 at) {
    const int lane = lane_id(), within = K == 1 ? lane & (size - 1) : lane;
    uint64 key[K];
    sort_keys(own, length, size, keys, key);
    bool twice = false;
#pragma unroll
    for (int j = 0; j < K; ++j) {
        const uint64 left = left_of(key, j);
        const int e = j * WARP + within;
        if (e >= length) continue;
        const bool again = e && keys.col(left) == keys.col(key[j]);
        twice |= again;
        output.put(at + e, key[j], again, keys);
    }
    return twice;
}

// Rows of more than PIECE keys: each piece of one is sorted where it lies, and then they are merged.
[[maybe_unused]] constexpr int PIECE = 4 * WARP;

__device__ inline void sort_piece(uint64* own, int length, const Keys& keys) {
    uint64 key[PIECE / WARP];
    sort_keys(own, length, WARP, keys, key);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < PIECE / WARP; ++j)
        if (j * WARP + lane_id() < length) own[j * WARP + lane_id()] = key[j];
}

// By all threads of the block: pieces that are sorted are merged where they lie, by the later stages of the bitonic network. Beyond
// the end are keys above all others.
__device__ inline void merge_pieces(uint64* own, int length) {
    for (int size = 2 * PIECE; size < 2 * length; size *= 2)
        for (int apart = size / 2; apart; apart /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; 2 * i - (i & (apart - 1)) < length; i += blockDim.x) {
                const int low = 2 * i - (i & (apart - 1)), high = apart == size / 2 ? low ^ (size - 1) : low + apart;
                if (high >= length) continue;
                const uint64 a = own[low], b = own[high];
                if (a > b) {
                    own[low] = b;
                    own[high] = a;
                }
            }
        }
    __syncthreads();
}

// csr_sort_buckets: the entries of each bucket, row by row and ascending, and where rows begin; found[0] = how many buckets are
// `large`, of more than `cap` entries, of which nothing is written; found[1] = 1 where a row has a column twice
//
// mapping   a thread block a bucket; a warp a row, or several short ones, or a piece of a long one
// traffic   16 bytes and 2 sizeof(W) an entry that is taken, or 24 bytes; 8 a row
// requires  keys that csr_put_into_buckets has put; found is zeroed by the host; shared memory for `cap` keys, which are less than
//           MOST_LONG pieces, and for a number a row, and one more
// races     the order within a row is that of atomics, until it is sorted; all keys differ. Whoever writes the flag writes 1
template <class W, bool TAKES, int THREADS, int AT_ONCE>
__global__ __launch_bounds__(THREADS, AT_ONCE) void csr_sort_buckets(const int64* begins, int64 n_rows, Keys to_keys, int cap,
                                                                     const uint64* keys, Output<W, TAKES> output,
                                                                     int64* indptr, int* large, uint64* found) {
    constexpr int WARPS = THREADS / WARP, MOST_LONG = 256;
    extern __shared__ __align__(16) uint64 own[];  // keys, and values where there is room
    __shared__ int longest, n_long, of_long[MOST_LONG];
    const int64 bucket = blockIdx.x, begin = begins[bucket], first_row = to_keys.first_row(bucket);
    const int n = (int)(begins[bucket + 1] - begin), rows = (int)(min(to_keys.first_row(bucket + 1), n_rows) - first_row);
    const int lane = lane_id(), warp = threadIdx.x / WARP;
    if (n > cap) {
        if (threadIdx.x == 0) large[atomicAdd(found, 1ull)] = (int)bucket;
        return;
    }
    uint32* ends = reinterpret_cast<uint32*>(own + cap);  // of rows, from 1 on; the number of entries at first
    for (int i = threadIdx.x; i <= rows; i += THREADS) ends[i] = 0;
    if (threadIdx.x == 0) longest = n_long = 0;
    __syncthreads();
    keys += begin;
#pragma unroll 4
    for (int k = threadIdx.x; k < n; k += THREADS) atomicAdd(ends + 1 + to_keys.row(keys[k]), 1u);
    __syncthreads();
    // sums of the rows before each: ends[i] is where row i begins
    int64 before = 0;
    for (int first = 0; first <= rows; first += THREADS) {
        const int i = first + threadIdx.x;
        const int length = i <= rows ? (int)ends[i] : 0, most = warp_max(length);
        if (lane == 0) atomicMax(&longest, most);
        if (length > PIECE) of_long[atomicAdd(&n_long, 1)] = i - 1;
        int64 sum[1] = {length}, total;
        sums_of_block<THREADS, 1>(sum, total);
        if (i <= rows) ends[i] = (uint32)(before + sum[0]);
        if (i < rows) indptr[first_row + i] = begin + before + sum[0];
        before += total;
        __syncthreads();
    }
    if (threadIdx.x == 0 && first_row + rows == n_rows) indptr[n_rows] = begin + n;
    // each place is taken from where its row begins on, so that ends[i] is then where row i ends
#pragma unroll 4
    for (int k = threadIdx.x; k < n; k += THREADS) {
        const uint64 key = keys[k];
        own[atomicAdd(ends + to_keys.row(key), 1u)] = to_keys.with_place(key, k);
    }
    if (TAKES) {  // values are taken from shared memory where there is room left
        output.with_keys += begin;
        W* beside = reinterpret_cast<W*>(own + (n + 1) / 2 * 2);
        if ((n + 1) / 2 * 2 * sizeof(uint64) + n * sizeof(W) <= cap * sizeof(uint64)) {
#pragma unroll 4
            for (int k = threadIdx.x; k < n; k += THREADS) beside[k] = output.with_keys[k];
            output.with_keys = beside;
        }
    }
    __syncthreads();
    const int size = longest <= 8 ? 8 : longest <= 16 ? 16 : WARP, each = WARP / size;
    bool twice = false;
    for (int i = warp * each; i < rows; i += WARPS * each) {
        const int row = i + lane / size, from = row < rows && row ? (int)ends[row - 1] : 0;
        const int length = row < rows ? (int)ends[row] - from : 0;
        const int64 at = begin + from;
        if (length <= WARP)
            twice |= sort_row<1>(own + from, length, size, to_keys, output, at);
        else if (length <= 2 * WARP)
            twice |= sort_row<2>(own + from, length, size, to_keys, output, at);
        else if (length <= PIECE)
            twice |= sort_row<4>(own + from, length, size, to_keys, output, at);
    }
    for (int l = 0; l < n_long; ++l) {
        const int row = of_long[l], from = row ? (int)ends[row - 1] : 0, length = (int)ends[row] - from;
        for (int first = warp * PIECE; first < length; first += WARPS * PIECE)
            sort_piece(own + from + first, min(PIECE, length - first), to_keys);
        merge_pieces(own + from, length);
        for (int e = threadIdx.x; e < length; e += THREADS) {
            const bool again = e && to_keys.col(own[from + e - 1]) == to_keys.col(own[from + e]);
            twice |= again;
            output.put(begin + from + e, own[from + e], again, to_keys);
        }
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
        sum[u] = first + u < n && !(entries[first + u] >> 63);
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
