// Value tables from values in any order: see Sources in cvrarray/core/tables.py. A slot has `unit` numbers, WARP apart.

// assembly_gather: every slot's numbers, none of which is a sum
//
// mapping   one thread for U slots, blockDim.x apart
// traffic   sizeof(N) bytes a slot; its numbers are read in the order of slots, and written 32 side by side
// races     none
template <class W, class N, int U>
__global__ void assembly_gather(const N* source, int64 n_slots, int unit, const W* data, W* values) {
    const int64 first = blockIdx.x * (int64)blockDim.x * U + threadIdx.x;
    N from[U];
#pragma unroll
    for (int u = 0; u < U; ++u) from[u] = first + u * blockDim.x < n_slots ? source[first + u * blockDim.x] : N(0);
    for (int j = 0; j < unit; ++j) {
        W value[U];
#pragma unroll
        for (int u = 0; u < U; ++u) value[u] = from[u] ? data[((int64)from[u] - 1) * unit + j] : W{};
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 slot = first + u * blockDim.x;
            if (slot < n_slots) values[slot / WARP * WARP * unit + slot % WARP + (int64)j * WARP] = value[u];
        }
    }
}

// assembly_add: the same where numbers are sums, whose terms are added in the order of `order`; of float16 in float
//
// mapping   one thread a slot
// traffic   as assembly_gather, and sizeof(N) bytes a term and place
// races     none: one owner a sum
template <class A, class N, int U>
__global__ void assembly_add(const N* source, int64 n_slots, int unit, const N* first, const N* order, const A* data, A* values) {
    const int64 slot = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (slot >= n_slots) return;
    typedef typename Summed<A>::Type Sum;
    const N from = source[slot];
    const int64 begin = from ? first[from - 1] : 0, end = from ? first[from] : 0;
    A* to = values + slot / WARP * WARP * unit + slot % WARP;
    for (int j = 0; j < unit; ++j) {
        A value{};
        if (begin < end) {
            Sum sum = data[(int64)order[begin] * unit + j];
            for (int64 k = begin + 1; k < end; k += U) {  // U terms are loaded before the first is added
                A term[U];
#pragma unroll
                for (int u = 0; u < U; ++u) term[u] = k + u < end ? data[(int64)order[k + u] * unit + j] : A{};
#pragma unroll
                for (int u = 0; u < U; ++u)
                    if (k + u < end) sum = add(sum, Sum(term[u]));
            }
            value = Summed<A>::rounded(sum);
        }
        to[(int64)j * WARP] = value;
    }
}

// assembly_add_units: the same for small units, whose B numbers are added up in registers
//
// mapping   one thread a slot
// traffic   as assembly_add
// races     none: one owner a sum
template <class A, class N, int B, int U>
__global__ void assembly_add_units(const N* source, int64 n_slots, const N* first, const N* order, const A* data, A* values) {
    const int64 slot = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (slot >= n_slots) return;
    typedef typename Summed<A>::Type Sum;
    const N from = source[slot];
    const int64 begin = from ? first[from - 1] : 0, end = from ? first[from] : 0;
    Sum sum[B] = {};
    for (int64 k = begin; k < end; k += U) {  // U units are loaded before the first is added
        N unit[U];
        A term[U][B];
#pragma unroll
        for (int u = 0; u < U; ++u) unit[u] = k + u < end ? order[k + u] : N(0);
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int j = 0; j < B; ++j) term[u][j] = k + u < end ? data[(int64)unit[u] * B + j] : A{};
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int j = 0; j < B; ++j)
                if (k + u < end) sum[j] = k + u == begin ? Sum(term[u][j]) : add(sum[j], Sum(term[u][j]));
    }
    A* to = values + slot / WARP * WARP * B + slot % WARP;
#pragma unroll
    for (int j = 0; j < B; ++j) to[j * WARP] = Summed<A>::rounded(sum[j]);
}

// assembly_add_steps: sums of single numbers, whose terms stand side by side for 32 slots; of float16 in float
//
// mapping   one thread a slot
// traffic   sizeof(N) bytes a term and pad of terms, 8 a warp; terms are read in the order of slots
// races     none: one owner a sum
template <class A, class N, int U>
__global__ void assembly_add_steps(const int64* first, int64 n_slots, const N* source, const A* data, A* values) {
    const int64 slot = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (slot >= n_slots) return;
    typedef typename Summed<A>::Type Sum;
    const int64 begin = first[slot / WARP], end = first[slot / WARP + 1];
    source += slot % WARP;
    const N from = begin < end ? source[begin] : N(0);
    A value{};
    if (from) {
        Sum sum = data[(int64)from - 1];
        for (int64 k = begin + WARP; k < end; k += U * WARP) {  // U terms are loaded before the first is added
            N number[U];
            A term[U];
#pragma unroll
            for (int u = 0; u < U; ++u) number[u] = k + u * WARP < end ? source[k + u * WARP] : N(0);
#pragma unroll
            for (int u = 0; u < U; ++u) term[u] = number[u] ? data[(int64)number[u] - 1] : A{};
#pragma unroll
            for (int u = 0; u < U; ++u)
                if (number[u]) sum = add(sum, Sum(term[u]));
        }
        value = Summed<A>::rounded(sum);
    }
    values[slot] = value;
}

// assembly_fingerprint: adds 64 bits of the contents of an array of words to `found`
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
    sum = warp_sum(sum);
    if (lane_id() == 0) atomicAdd(found, sum);
}
