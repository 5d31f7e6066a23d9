// Values compared by their bits, and a sample of them.

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

// The bits of value i of those of `size` bytes, wherever they begin at a multiple of it.
__device__ inline Bits<complex128> bits_at(const void* data, int64 i, int size) {
    switch (size) {
        case 1: return {static_cast<const uint8*>(data)[i], 0};
        case 2: return {static_cast<const uint16*>(data)[i], 0};
        case 4: return {static_cast<const uint32*>(data)[i], 0};
        case 8: return {static_cast<const uint64*>(data)[i], 0};
        default: return {static_cast<const uint64*>(data)[2 * i], static_cast<const uint64*>(data)[2 * i + 1]};
    }
}

// A first look at `n` values of `size` bytes, by a block of THREADS: found[0] = how many differ of N that are evenly spaced;
// found[1] = 1 where some of these are doubles that have other bits as float. Their hashes meet in shared memory: different
// values may have the same one, so that the count is too small. All values are looked at then.
template <int N, int THREADS>
__device__ void sample_values(const void* data, int64 n, int size, bool are_double, int* found) {
    static_assert(2 * N <= PLACES && N % THREADS == 0, "half of the places stay empty");
    constexpr uint32 EMPTY = 0;
    __shared__ uint32 taken[PLACES];
    for (int i = threadIdx.x; i < PLACES; i += THREADS) taken[i] = EMPTY;
    __syncthreads();
    int n_different = 0;
    bool has_changed = false;
    for (int64 i = threadIdx.x; i < N; i += THREADS) {
        const Bits<complex128> bits = bits_at(data, i * n / N, size);
        const uint32 hash = max(hash_of(bits), EMPTY + 1);
        uint32 before;
        int place = place_of(hash);
        while ((before = atomicCAS(taken + place, EMPTY, hash)) != EMPTY && before != hash) place = (place + 1) % PLACES;
        n_different += __syncthreads_count(before == EMPTY);
        has_changed |= are_double && (changes(Bits<uint64>{bits.low}) || (size > 8 && changes(Bits<uint64>{bits.high})));
    }
    const int n_changed = __syncthreads_count(has_changed);
    if (threadIdx.x == 0) {
        found[0] = n_different;
        found[1] = n_changed > 0;
    }
}
