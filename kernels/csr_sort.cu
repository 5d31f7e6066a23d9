// Coordinates in any order, sorted by row, then column, then as they come. An entry is a key: its column, and its number among
// the coordinates, 32 bits each. Entries are put to their rows first, in any order, and then each row is sorted.

// csr_count_rows: count[r + 1] += entries of row r; within[k] = how many of its row were counted before entry k
//
// mapping   threads stride over the entries; lanes of a warp that have one row count together
// traffic   8 bytes an entry, and a sector of count for each row that a warp meets
// requires  rows in range; count (n_rows + 1,) is zeroed by the host
// races     sums of integers, taken atomically: `within` has each number of a row once, in any order
__global__ void csr_count_rows(const int* row, int64 n, uint64* count, uint32* within) {
    for (int64 first = blockIdx.x * (int64)blockDim.x; first < n; first += gridDim.x * (int64)blockDim.x) {
        const int64 k = first + threadIdx.x;
        const unsigned active = __ballot_sync(FULL, k < n);
        if (k >= n) continue;
        const unsigned peers = __match_any_sync(active, row[k]);
        const int leader = __ffs(peers) - 1;
        uint32 before = 0;
        if (lane_id() == leader) before = (uint32)atomicAdd(count + row[k] + 1, (uint64)__popc(peers));
        within[k] = shuffle(before, leader, peers) + __popc(peers & ((1u << lane_id()) - 1));
    }
}

// csr_put_into_rows: the keys of each row, in the order of `within`
//
// mapping   threads stride over the entries
// traffic   12 bytes an entry, and a sector of keys and of offsets
// requires  what csr_count_rows has counted
// races     none: each place has one writer
__global__ void csr_put_into_rows(const int* row, const int* col, int64 n, const int64* indptr, const uint32* within,
                                  uint64* keys) {
    constexpr int U = 4;
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 first = blockIdx.x * (int64)blockDim.x + threadIdx.x; first < n; first += U * stride) {
        int64 place[U];
        uint64 key[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 k = min(first + u * stride, n - 1);
            place[u] = indptr[row[k]] + within[k];
            key[u] = (uint64)(uint32)col[k] << 32 | (uint32)k;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (first + u * stride < n) keys[place[u]] = key[u];
    }
}

// csr_sort_rows: the keys of each row ascend; found[0] = 1 where a row has a column twice
//
// mapping   one warp a row: one key a lane, or CAP keys in shared memory
// traffic   16 bytes an entry
// requires  rows of at most CAP entries, a power of two; found is zeroed by the host
// races     none: a warp owns its row; whoever writes the flag writes 1
// source    K. E. Batcher, "Sorting networks and their applications", AFIPS 1968: the bitonic network
template <int CAP, int WARPS>
__global__ void csr_sort_rows(const int64* indptr, int64 n_rows, uint64* keys, int64* found) {
    constexpr uint64 NONE = ~0ull;
    __shared__ uint64 all[WARPS][CAP > WARP ? CAP : 1];
    uint64* own = all[threadIdx.x / WARP];
    const int lane = lane_id();
    const int64 row = warp_id();
    if (row >= n_rows) return;
    const int length = (int)(indptr[row + 1] - indptr[row]);
    keys += indptr[row];
    bool twice = false;
    if (length <= WARP) {
        uint64 key = lane < length ? keys[lane] : NONE;
        for (int size = 2; size <= WARP; size *= 2)
            for (int apart = size / 2; apart; apart /= 2) {
                const uint64 other = shuffle(key, lane ^ apart);
                key = ((lane & size) == 0) == ((lane & apart) == 0) ? min(key, other) : max(key, other);
            }
        const uint64 before = shuffle(key, max(lane - 1, 0));
        twice = 0 < lane && lane < length && before >> 32 == key >> 32;
        if (lane < length) keys[lane] = key;
    } else {
        int n = WARP;
        while (n < length) n *= 2;
        for (int i = lane; i < n; i += WARP) own[i] = i < length ? keys[i] : NONE;
        for (int size = 2; size <= n; size *= 2)
            for (int apart = size / 2; apart; apart /= 2) {
                __syncwarp();
                for (int i = lane; i < n / 2; i += WARP) {
                    const int low = 2 * i - (i & (apart - 1)), high = low + apart;
                    const uint64 a = own[low], b = own[high];
                    if ((a > b) == ((low & size) == 0)) {
                        own[low] = b;
                        own[high] = a;
                    }
                }
            }
        __syncwarp();
        for (int i = lane; i < length; i += WARP) {
            twice |= i && own[i - 1] >> 32 == own[i] >> 32;
            keys[i] = own[i];
        }
    }
    if (__any_sync(FULL, twice) && lane == 0) found[0] = 1;
}

// csr_take: the column of each key, and the value that it numbers. W is a word of a value's size.
//
// mapping   threads stride over the keys
// traffic   12 bytes and sizeof(W) an entry, and a sector of data
// races     none
template <class W>
__global__ void csr_take(const uint64* keys, int64 n, const W* data, int* indices, W* taken) {
    constexpr int U = 4;
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 first = blockIdx.x * (int64)blockDim.x + threadIdx.x; first < n; first += U * stride) {
        uint64 key[U];
        W value[U];
#pragma unroll
        for (int u = 0; u < U; ++u) key[u] = keys[min(first + u * stride, n - 1)];
#pragma unroll
        for (int u = 0; u < U; ++u) value[u] = data[(uint32)key[u]];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 k = first + u * stride;
            if (k >= n) break;
            indices[k] = (int)(key[u] >> 32);
            taken[k] = value[u];
        }
    }
}
