// Values in few bytes: numbers of distinct values, and values in a narrower type. The host's side is
// cvrarray/gpu/distinct.py.

#include "distinct.cuh"

// distinct_sample: a first look at values: sample_values of distinct.cuh
//
// mapping   one block
// traffic   a sector a value
// races     marks of shared memory are set by atomics, in any order, between barriers
template <int N, int THREADS>
__global__ void distinct_sample(const void* data, int64 n, int size, bool are_double, int* found) {
    sample_values<N, THREADS>(data, n, size, are_double, found);
}

// distinct_number: number[i] = which of the `n_known` known values the bits of data[i] are. Where they are none, i goes
// into `missed` as far as there is room for MOST; n_missed counts these. Beyond MOST the rest of `number` is not
// written.
//
// mapping   threads stride over the values; each block has a hash table of the known ones in shared memory
// traffic   sizeof(W) + 1 bytes a value
// requires  at most 256 known values, all different
// races     the tables of shared memory are made by atomics, in any order, before a barrier; missed ones come in any
//           order
template <class W, int MOST>
__global__ void distinct_number(const Bits<W>* data, int64 n, const Bits<W>* known, int n_known, uint8* number, uint32* n_missed,
                                int64* missed) {
    constexpr int EMPTY = -1, U = 4;
    __shared__ int at[PLACES];
    __shared__ Bits<W> value[PLACES / 4];
    for (int i = threadIdx.x; i < PLACES; i += blockDim.x) at[i] = EMPTY;
    __syncthreads();
    for (int i = threadIdx.x; i < n_known; i += blockDim.x) {
        value[i] = known[i];
        for (int place = place_of(hash_of(value[i])); atomicCAS(at + place, EMPTY, i) != EMPTY;) place = (place + 1) % PLACES;
    }
    __syncthreads();
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 begin = blockIdx.x * (int64)blockDim.x + threadIdx.x; begin < n; begin += U * stride) {
        if (fresh(n_missed) > MOST) return;
        Bits<W> bits[U];
#pragma unroll
        for (int u = 0; u < U; ++u) bits[u] = data[min(begin + u * stride, n - 1)];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 i = begin + u * stride;
            if (i >= n) break;
            int place = place_of(hash_of(bits[u]));
            while (at[place] != EMPTY && !(value[at[place]] == bits[u])) place = (place + 1) % PLACES;
            if (at[place] != EMPTY) {
                number[i] = (uint8)at[place];
            } else {
                const uint32 k = atomicAdd(n_missed, 1u);
                if (k < MOST) missed[k] = i;
            }
        }
    }
}

// distinct_narrow: the values as floats; n_changed counts those whose bits that would change
//
// mapping   threads stride over the values
// traffic   12 bytes a value
// races     a sum of integers, taken atomically
__global__ void distinct_narrow(const double* data, int64 n, float* narrow, uint32* n_changed) {
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x; i < n; i += stride) {
        if (fresh(n_changed)) return;
        narrow[i] = narrowed(data[i]);
        if (changes(data[i])) atomicAdd(n_changed, 1u);
    }
}

// distinct_widen: the values that these floats stand for
//
// mapping   threads stride over the values
// traffic   12 bytes a value
// races     none
__global__ void distinct_widen(const float* narrow, int64 n, double* data) {
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x; i < n; i += stride) data[i] = widened(narrow[i]);
}
