// Value tables from values in any order: see Sources in cvrarray/core/tables.py. A slot has `unit` numbers, WARP apart.

// assembly_gather: every slot's numbers, none of which is a sum
//
// mapping   one thread a slot
// traffic   sizeof(N) bytes a slot; its numbers are read in the order of slots, and written 32 side by side
// races     none
template <class W, class N>
__global__ void assembly_gather(const N* source, int64 n_slots, int unit, const W* data, W* values) {
    const int64 slot = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (slot >= n_slots) return;
    const N from = source[slot];
    const W* numbers = data + ((int64)from - 1) * unit;
    W* to = values + slot / WARP * WARP * unit + slot % WARP;
    for (int j = 0; j < unit; ++j) to[(int64)j * WARP] = from ? numbers[j] : W{};
}

// assembly_add: the same where numbers are sums, whose terms are added in the order of `order`; of float16 in float
//
// mapping   one thread a slot
// traffic   as assembly_gather, and 8 bytes a term
// races     none: one owner a sum
template <class A, class N>
__global__ void assembly_add(const N* source, int64 n_slots, int unit, const int64* first, const int64* order, const A* data,
                             A* values) {
    const int64 slot = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (slot >= n_slots) return;
    typedef typename Summed<A>::Type Sum;
    const N from = source[slot];
    const int64 begin = from ? first[from - 1] : 0, end = from ? first[from] : 0;
    A* to = values + slot / WARP * WARP * unit + slot % WARP;
    for (int j = 0; j < unit; ++j) {
        A value{};
        if (begin < end) {
            Sum sum = data[order[begin] * unit + j];
            for (int64 k = begin + 1; k < end; ++k) sum = add(sum, Sum(data[order[k] * unit + j]));
            value = Summed<A>::rounded(sum);
        }
        to[(int64)j * WARP] = value;
    }
}

// assembly_fingerprint: 64 bits of the contents of an array of words
//
// mapping   threads stride over the words
// traffic   sizeof(W) bytes a word
// races     a sum of integers, taken atomically
template <class W>
__global__ void assembly_fingerprint(const W* words, int64 n, uint64* found) {
    uint64 sum = 0;
    for (int64 k = blockIdx.x * (int64)blockDim.x + threadIdx.x; k < n; k += (int64)gridDim.x * blockDim.x) {
        // the finalizer of MurmurHash3, of the word and its place
        uint64 bits = ((uint64)words[k] + 1) * 0x9e3779b185ebca87ull ^ (uint64)(k + 1) * 0xc2b2ae3d27d4eb4full;
        bits = (bits ^ bits >> 33) * 0xff51afd7ed558ccdull;
        bits = (bits ^ bits >> 33) * 0xc4ceb9fe1a85ec53ull;
        sum += bits ^ bits >> 33;
    }
    for (int apart = WARP / 2; apart; apart /= 2) sum += shuffle(sum, lane_id() ^ apart);
    if (lane_id() == 0) atomicAdd(found, sum);
}
