// Values in few bytes: numbers of distinct values, and values in a narrower type. The host's side is
// cvrarray/gpu/distinct.py.

// a value's bits
template <class W>
struct Bits {
    W word;
    __device__ bool operator==(Bits other) const { return word == other.word; }
    __device__ uint64 mixed() const { return word; }
};
template <>
struct Bits<complex128> {
    uint64 low, high;
    __device__ bool operator==(Bits other) const { return low == other.low && high == other.high; }
    __device__ uint64 mixed() const { return low ^ high * 0xc2b2ae3d27d4eb4full; }
};

// Between the two precisions bit by bit: conversions of hardware change the bits of a nan, and the compiler's flags
// would flush denormals.
__device__ float narrowed(double wide) {
    const uint64 bits = __double_as_longlong(wide);
    if (wide != wide) return __uint_as_float((uint32)(bits >> 32 & 0x80000000u) | 0x7f800000u | (uint32)(bits >> 29 & 0x7fffffu));
    float narrow;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(narrow) : "d"(wide));
    return narrow;
}
__device__ double widened(float narrow) {
    const uint64 bits = __float_as_uint(narrow);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return __longlong_as_double((bits & 0x80000000u) << 32 | 0x7ffull << 52 | (bits & 0x7fffffu) << 29);
    return Widen<double, float>::from(narrow);
}

// whether a double, or one of the two in 16 bytes, would have other bits after a conversion to float and back
__device__ bool changes(double wide) { return __double_as_longlong(widened(narrowed(wide))) != __double_as_longlong(wide); }
__device__ bool changes(Bits<uint64> bits) { return changes(__longlong_as_double(bits.word)); }
__device__ bool changes(Bits<complex128> bits) {
    return changes(__longlong_as_double(bits.low)) || changes(__longlong_as_double(bits.high));
}
template <class W>
__device__ bool changes(Bits<W>) {
    return true;
}

// 32 bits of a hash, and its place among so many. The upper ones: lower bits of values are often 0, and would stay 0.
template <class W>
__device__ uint32 hash_of(Bits<W> bits) {
    return (uint32)(bits.mixed() * 0x9e3779b185ebca87ull >> 32);
}
[[maybe_unused]] constexpr int PLACES = 1024;
__device__ int place_of(uint32 hash) { return (int)(hash >> 22); }

// distinct_sample: found[0] = how many values differ of N that are evenly spaced; found[1] = 1 where some have other
// bits as float
//
// mapping   one block of N threads, one value each; their hashes meet in shared memory. Different values may have the
//           same hash, so that the count is too small: all values are looked at then
// traffic   a sector a value
// races     marks of shared memory are set by atomics, in any order, between barriers
template <class W, int N>
__global__ void distinct_sample(const Bits<W>* data, int64 n, bool are_double, int* found) {
    static_assert(2 * N <= PLACES, "half of the places stay empty");
    constexpr uint32 EMPTY = 0;
    __shared__ uint32 taken[PLACES];
    for (int i = threadIdx.x; i < PLACES; i += N) taken[i] = EMPTY;
    __syncthreads();
    const Bits<W> bits = data[threadIdx.x * n / N];
    const uint32 hash = max(hash_of(bits), EMPTY + 1);
    uint32 before;
    int place = place_of(hash);
    while ((before = atomicCAS(taken + place, EMPTY, hash)) != EMPTY && before != hash) place = (place + 1) % PLACES;
    const int n_different = __syncthreads_count(before == EMPTY);
    const int n_changed = __syncthreads_count(are_double && changes(bits));
    if (threadIdx.x == 0) {
        found[0] = n_different;
        found[1] = n_changed > 0;
    }
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
