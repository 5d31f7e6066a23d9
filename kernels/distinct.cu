// Values in few bytes: numbers of distinct values, and values in a narrower type. The host's side is cvrarray/gpu/distinct.py.

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

// distinct_number: number[i] = which of the `n_known` known values the bits of data[i] are. Where they are none, i goes into
// `missed` as far as there is room for MOST; n_missed counts these. Beyond MOST the rest of `number` is not written.
//
// mapping   threads stride over the values; each block has a hash table of the known ones in shared memory
// traffic   sizeof(W) + 1 bytes a value
// requires  at most 256 known values, all different
// races     the tables of shared memory are made by atomics, in any order, before a barrier; missed ones come in any order
template <class W, int MOST>
__global__ void distinct_number(const Bits<W>* data, int64 n, const Bits<W>* known, int n_known, uint8* number, uint32* n_missed,
                                int64* missed) {
    constexpr int PLACES = 1024, EMPTY = -1, U = 4;
    __shared__ int at[PLACES];
    __shared__ Bits<W> value[PLACES / 4];
    auto hash = [](Bits<W> bits) { return (int)(bits.mixed() * 0x9e3779b185ebca87ull >> 54); };
    for (int i = threadIdx.x; i < PLACES; i += blockDim.x) at[i] = EMPTY;
    __syncthreads();
    for (int i = threadIdx.x; i < n_known; i += blockDim.x) {
        value[i] = known[i];
        for (int place = hash(value[i]); atomicCAS(at + place, EMPTY, i) != EMPTY;) place = (place + 1) % PLACES;
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
            int place = hash(bits[u]);
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

// Between the two precisions bit by bit: conversions of hardware change the bits of a nan, and the compiler's flags would flush
// denormals.
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
        if (__double_as_longlong(widened(narrow[i])) != __double_as_longlong(data[i])) atomicAdd(n_changed, 1u);
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
