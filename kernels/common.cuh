// What all kernels share: number types and their arithmetic, warp helpers, and the tables as the host passes them.
//
// NVRTC has no host headers, so everything is spelled out here. The host pastes this file in front of each kernel file.
//
// Template parameters have the same letters in all files:
//
//   A, X, Y    types of stored values (of a matrix: values.cuh); of what gives an entry of x for a column; of vectors,
//              sums and products
//   I, P       types of row and column numbers (int32 or int64); of offsets into them
//   C          type of a column as stored: uint16 (from a base) or I
//   M          BBCSR: type of the bits that tell a block's entries from its holes
//   B          BBCSR: columns of a block;  HOLES: whether blocks have holes
//   L          CVR: lanes of a chunk;  CUT: whether a row may be cut between chunks, or in pieces
//   U          steps or blocks that are loaded before the first is used;  S: warps that share a bin
//   G, V       A @ X: lanes that share a row, and columns that each of them holds: see matrix.cuh
//   UPDATE     which form of y = alpha * sum + beta * y: enum Update
//   WARPS, THREADS  of a thread block
#pragma once

typedef signed char int8;
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef long long int64;
typedef unsigned long long uint64;

[[maybe_unused]] constexpr int WARP = 32;
[[maybe_unused]] constexpr unsigned FULL = 0xffffffffu;  // every lane of a warp takes part
[[maybe_unused]] constexpr int64 NARROW = 1 << 16;  // a tile whose columns span less than this stores 16-bit offsets

// ---------------------------------------------------------------------------------------------------- arithmetic

template <class T>
struct alignas(2 * sizeof(T)) Complex {
    T re, im;
};
typedef Complex<float> complex64;
typedef Complex<double> complex128;

// half precision is stored and never computed with. It is spelled in PTX, because NVRTC does not find cuda_fp16.h
struct float16 {
    uint16 bits;
    __device__ operator float() const {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
};

// what one load takes of a vector
template <int BYTES>
struct Word;
template <>
struct Word<1> {
    typedef uint8 Type;
};
template <>
struct Word<2> {
    typedef uint16 Type;
};
template <>
struct Word<4> {
    typedef uint32 Type;
};
template <>
struct Word<8> {
    typedef uint2 Type;
};
template <>
struct Word<16> {
    typedef uint4 Type;
};

// V numbers side by side: one load or store of at most 16 bytes, or several. Rows of X are entries of x where they have only
// these: see gpu/rows_as_entries.py
template <class T, int V>
struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) Vector {
    T at[V];
};

// what scales the entries of x and y: one number, where these are vectors too
template <class Y>
struct ScalarOf {
    typedef Y Type;
};
template <class T, int V>
struct ScalarOf<Vector<T, V>> {
    typedef T Type;
};
template <class Y>
using Scalar = typename ScalarOf<Y>::Type;

// a value in the type that the product computes in. From float to double it is spelled in PTX for the same reason as
// mac().
template <class Y, class A>
struct Widen {
    static __device__ Y from(A a) { return static_cast<Y>(a); }
};
template <>
struct Widen<double, float> {
    static __device__ double from(float a) {
        double value;
        asm("cvt.f64.f32 %0, %1;" : "=d"(value) : "f"(a));
        return value;
    }
};
template <class T, class A>
struct Widen<Complex<T>, A> {
    static __device__ Complex<T> from(A a) { return {Widen<T, A>::from(a), T(0)}; }
};
template <class T, class S>
struct Widen<Complex<T>, Complex<S>> {
    static __device__ Complex<T> from(Complex<S> a) { return {Widen<T, S>::from(a.re), Widen<T, S>::from(a.im)}; }
};

template <class T, int V, class A>
struct Widen<Vector<T, V>, A> {
    static __device__ Vector<T, V> from(A a) {
        Vector<T, V> value;
#pragma unroll
        for (int i = 0; i < V; ++i) value.at[i] = Widen<T, A>::from(a);
        return value;
    }
};

// a * x + acc. The float form is spelled in PTX because the host's compiler flags flush denormals otherwise
// (CuPy compiles with -ftz=true), and a CPU does not.
template <class Y>
__device__ Y mac(Y a, Y x, Y acc) {
    return acc + a * x;
}
template <>
__device__ float mac(float a, float x, float acc) {
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(x), "f"(acc));
    return sum;
}
template <>
__device__ double mac(double a, double x, double acc) {
    return __fma_rn(a, x, acc);
}
// -a, spelled in PTX for the same reason
__device__ inline float negated(float a) {
    float value;
    asm("neg.f32 %0, %1;" : "=f"(value) : "f"(a));
    return value;
}
__device__ inline double negated(double a) { return -a; }
template <class T>
__device__ Complex<T> mac(Complex<T> a, Complex<T> x, Complex<T> acc) {
    return {mac(negated(a.im), x.im, mac(a.re, x.re, acc.re)), mac(a.im, x.re, mac(a.re, x.im, acc.im))};
}

template <class T, int V>
__device__ Vector<T, V> mac(Vector<T, V> a, Vector<T, V> x, Vector<T, V> acc) {
#pragma unroll
    for (int i = 0; i < V; ++i) acc.at[i] = mac(a.at[i], x.at[i], acc.at[i]);
    return acc;
}
template <class T, int V>
__device__ Vector<T, V> mac(T a, Vector<T, V> x, Vector<T, V> acc) {
#pragma unroll
    for (int i = 0; i < V; ++i) acc.at[i] = mac(a, x.at[i], acc.at[i]);
    return acc;
}

// sum = a * x + sum, but for a `skip` that is not 0. The forms in PTX add in place, with a predicate.
template <class Y>
__device__ void mac_unless(unsigned skip, Y a, Y x, Y& sum) {
    if (!skip) sum = mac(a, x, sum);
}
template <>
__device__ void mac_unless(unsigned skip, float a, float x, float& sum) {
    asm("{.reg .pred p; setp.eq.u32 p, %3, 0; @p fma.rn.f32 %0, %1, %2, %0;}" : "+f"(sum) : "f"(a), "f"(x), "r"(skip));
}
template <>
__device__ void mac_unless(unsigned skip, double a, double x, double& sum) {
    asm("{.reg .pred p; setp.eq.u32 p, %3, 0; @p fma.rn.f64 %0, %1, %2, %0;}" : "+d"(sum) : "d"(a), "d"(x), "r"(skip));
}
template <class T>
__device__ void mac_unless(unsigned skip, Complex<T> a, Complex<T> x, Complex<T>& sum) {
    mac_unless(skip, a.re, x.re, sum.re);
    mac_unless(skip, negated(a.im), x.im, sum.re);
    mac_unless(skip, a.re, x.im, sum.im);
    mac_unless(skip, a.im, x.re, sum.im);
}

template <class T, int V>
__device__ void mac_unless(unsigned skip, Vector<T, V> a, Vector<T, V> x, Vector<T, V>& sum) {
#pragma unroll
    for (int i = 0; i < V; ++i) mac_unless(skip, a.at[i], x.at[i], sum.at[i]);
}

template <class Y>
__device__ Y add(Y a, Y b) {
    return a + b;
}
template <>
__device__ float add(float a, float b) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}
template <class T>
__device__ Complex<T> add(Complex<T> a, Complex<T> b) {
    return {add(a.re, b.re), add(a.im, b.im)};
}

template <class T, int V>
__device__ Vector<T, V> add(Vector<T, V> a, Vector<T, V> b) {
#pragma unroll
    for (int i = 0; i < V; ++i) a.at[i] = add(a.at[i], b.at[i]);
    return a;
}

template <class Y>
__device__ bool is_nan(Y value) {
    return value != value;
}
template <class T>
__device__ bool is_nan(Complex<T> value) {
    return is_nan(value.re) || is_nan(value.im);
}

// the real part of conj(a) * b, in double precision
__device__ inline double dot(float a, float b) { return (double)a * b; }
__device__ inline double dot(double a, double b) { return a * b; }
template <class T>
__device__ double dot(Complex<T> a, Complex<T> b) {
    return mac((double)a.im, (double)b.im, (double)a.re * b.re);
}

// the type in which values of A are added up, and the sum as an A again
template <class A>
struct Summed {
    typedef A Type;
    static __device__ A rounded(A sum) { return sum; }
};
template <>
struct Summed<float16> {
    typedef float Type;
    static __device__ float16 rounded(float sum) {
        float16 value;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value.bits) : "f"(sum));
        return value;
    }
};

// y = alpha * sum + beta * y. The plain product leaves both out: complex 1 * inf would make a nan.
enum Update { PLAIN, SCALE, ACCUMULATE };

template <class Y>
__device__ Y scaled(Y sum, Scalar<Y> alpha, int update) {
    return update == PLAIN ? sum : mac(alpha, sum, Y{});
}

template <class Y>
__device__ void store(Y* y, Y sum, Scalar<Y> alpha, Scalar<Y> beta, int update) {
    Y value = scaled(sum, alpha, update);
    *y = update == ACCUMULATE ? mac(beta, *y, value) : value;
}

// ---------------------------------------------------------------------------------------------------- warps

__device__ inline int lane_id() { return threadIdx.x & (WARP - 1); }

// This thread block's number among `n`: its place in a grid of one dimension. In one of two, blocks of a column of the grid
// are neighbours: with a column for each multiprocessor, neighbours are mostly on the same one, and find in L1 what they
// both read of x. A block without a number gets `n`.
__device__ inline int block_number(int n) {
    const int rows = gridDim.y - 1, longer = n - rows * gridDim.x;  // so many columns have a block more than these rows
    const int x = blockIdx.x, y = blockIdx.y;
    return y < rows || x < longer ? x * rows + min(x, longer) + y : n;
}

// this thread's warp, counted through the grid
__device__ inline int64 warp_id() { return (blockIdx.x * (int64)blockDim.x + threadIdx.x) / WARP; }

// a shuffle of any trivially copyable value, 32 bits at a time; of a part of the warp: `lanes` of that, `width` of them
template <class T>
__device__ T shuffle(T value, int source, unsigned lanes = FULL, int width = WARP) {
    constexpr int WORDS = (sizeof(T) + 3) / 4;
    union {
        T value;
        unsigned word[WORDS];
    } bits;
    bits.value = value;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) bits.word[i] = __shfl_sync(lanes, bits.word[i], source, width);
    return bits.value;
}

template <class T>
__device__ T warp_min(T value) {
    for (int apart = WARP / 2; apart; apart /= 2) value = min(value, shuffle(value, lane_id() ^ apart));
    return value;
}

template <class T>
__device__ T warp_max(T value) {
    for (int apart = WARP / 2; apart; apart /= 2) value = max(value, shuffle(value, lane_id() ^ apart));
    return value;
}

// the sum over the warp, by the same tree in every run
template <class T>
__device__ T warp_sum(T value) {
    for (int apart = WARP / 2; apart; apart /= 2) value = add(value, shuffle(value, lane_id() ^ apart));
    return value;
}

// the sum of the warp's numbers up to and with this lane's
template <class T>
__device__ T sum_up_to(T value) {
#pragma unroll
    for (int apart = 1; apart < WARP; apart *= 2) {
        const T other = __shfl_up_sync(FULL, value, apart);
        if (lane_id() >= apart) value += other;
    }
    return value;
}

// totals[i] += the sum over the block's warps of what each one's first thread holds in value[i]: one atomic a block, on
// integers, so that the order does not matter. All threads of the block must call it.
template <int N>
__device__ void add_to_totals(const int64 (&value)[N], uint64* totals) {
    __shared__ uint64 sums[N];
    if (threadIdx.x < N) sums[threadIdx.x] = 0;
    __syncthreads();
    if (lane_id() == 0)
        for (int i = 0; i < N; ++i)
            if (value[i]) atomicAdd(sums + i, (uint64)value[i]);
    __syncthreads();
    if (threadIdx.x < N && sums[threadIdx.x]) atomicAdd(totals + threadIdx.x, sums[threadIdx.x]);
}

// What one load takes of a T, and the T in it: of complex numbers a vector, of what is no number to the compiler its
// bits.
template <class T>
struct Load {
    typedef T Word;
    static __device__ T value(T word) { return word; }
};
template <>
struct Load<bool> {
    typedef uint8 Word;
    static __device__ bool value(uint8 word) { return word != 0; }
};
template <>
struct Load<float16> {
    typedef uint16 Word;
    static __device__ float16 value(uint16 word) { return {word}; }
};
template <>
struct Load<complex64> {
    typedef float2 Word;
    static __device__ complex64 value(float2 word) { return {word.x, word.y}; }
};
template <>
struct Load<complex128> {
    typedef double2 Word;
    static __device__ complex128 value(double2 word) { return {word.x, word.y}; }
};

// streamed once: past L1, so that x stays there
template <class T>
__device__ T stream(const T* p) {
    return Load<T>::value(__ldcs(reinterpret_cast<const typename Load<T>::Word*>(p)));
}

// a number by one `L::load`; a vector by as many as its alignment takes
template <class L, class T>
__device__ T loaded(const T* p) {
    return Load<T>::value(L::load(reinterpret_cast<const typename Load<T>::Word*>(p)));
}
template <class L, class T, int V>
__device__ Vector<T, V> loaded(const Vector<T, V>* p) {
    constexpr int N = sizeof(*p) / alignof(Vector<T, V>);
    typedef typename Word<alignof(Vector<T, V>)>::Type Part;
    if constexpr (N == 1) {  // an array of one is other code, with other registers
        union {
            Part part;
            Vector<T, V> value;
        } bits;
        bits.part = L::load(reinterpret_cast<const Part*>(p));
        return bits.value;
    } else {
        union {
            Part part[N];
            Vector<T, V> value;
        } bits;
#pragma unroll
        for (int i = 0; i < N; ++i) bits.part[i] = L::load(reinterpret_cast<const Part*>(p) + i);
        return bits.value;
    }
}

// read often, by neighbours
struct ReadOnly {
    template <class P>
    static __device__ P load(const P* part) {
        return __ldg(part);
    }
};
template <class T>
__device__ T cached(const T* p) {
    return loaded<ReadOnly>(p);
}

// as other multiprocessors have written it in this kernel: past L1
template <class T>
__device__ T fresh(const T* p) {
    return Load<T>::value(__ldcg(reinterpret_cast<const typename Load<T>::Word*>(p)));
}

// read once in a product, by one warp: past L1, so that x stays there. KEEPS: L2 keeps it as long as anything else, for the
// next product; else it makes room there first
template <bool KEEPS, class T>
__device__ T once(const T* p) {
    return KEEPS ? fresh(p) : stream(p);
}

// a column of a BBCSR bin, or of CVR's rows in lanes, as stored: narrow ones count from a base. Is there none?
template <class I>
__device__ bool is_padding(uint16 stored, I) {
    return stored == 0xffff;
}
template <class I>
__device__ bool is_padding(I stored, I) {
    return stored < 0;
}

// The loads before it are all asked for before anything after it is computed. Left to itself the compiler multiplies the first
// entries of x before it asks for the last ones, as that takes fewer registers, and so waits twice. It moves nothing across a
// branch, and does not know that this one is never taken: `x`, from where they were loaded, is at no such address.
// `__syncwarp()` keeps loads in their order, but not what is computed.
__device__ inline void all_asked_for(const void* x) {
    asm volatile("{.reg .pred p; setp.eq.u64 p, %0, 7; @p trap;}" ::"l"(x) : "memory");
}

// ---------------------------------------------------------------------------------------------------- searching

// the first i in [0, n) with ptr[i] >= key; n if there is none
template <class P>
__device__ int64 lower_bound(const P* ptr, int64 n, int64 key) {
    int64 low = 0, high = n;
    while (low < high) {
        int64 middle = (low + high) / 2;
        if (ptr[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
