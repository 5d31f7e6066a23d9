// Blocks of a cooperative kernel wait for each other, and add numbers up. All blocks must be on the device at the same
// time.
//
// Each block stores into words of its own, and every block reads those of all: a store and a load, where a counter
// would take an atomic, a load of the counter and a load of the sums. Numbers say themselves of which round they are,
// by their last bit, the mark: so no fence has to order them after a flag, and none has to be erased. A round's mark is
// 0 or 1 in turn. A reader that has seen a round never sees the one before it, so a wrong mark means that the number is
// not there yet.

// ------------------------------------------------------------------------------------------------- numbers with a mark

__device__ inline float marked(float value, uint32 mark) { return __uint_as_float((__float_as_uint(value) & ~1u) | mark); }
__device__ inline double marked(double value, uint32 mark) {
    return __longlong_as_double((__double_as_longlong(value) & ~1ll) | mark);
}
template <class T>
__device__ Complex<T> marked(Complex<T> value, uint32 mark) {
    return {marked(value.re, mark), marked(value.im, mark)};
}

__device__ inline bool has_mark(float value, uint32 mark) { return (__float_as_uint(value) & 1) == mark; }
__device__ inline bool has_mark(double value, uint32 mark) { return ((uint32)__double_as_longlong(value) & 1) == mark; }
template <class T>
__device__ bool has_mark(Complex<T> value, uint32 mark) {
    return has_mark(value.re, mark) && has_mark(value.im, mark);
}

// a store that other blocks see without a fence, and a load of such
__device__ inline void tell(float* p, float value) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(value) : "memory");
}
__device__ inline void tell(double* p, double value) {
    asm volatile("st.relaxed.gpu.global.f64 [%0], %1;" ::"l"(p), "d"(value) : "memory");
}
template <class T>
__device__ void tell(Complex<T>* p, Complex<T> value) {
    tell(&p->re, value.re);
    tell(&p->im, value.im);
}
__device__ inline float told(const float* p) {
    float value;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(p) : "memory");
    return value;
}
__device__ inline double told(const double* p) {
    double value;
    asm volatile("ld.relaxed.gpu.global.f64 %0, [%1];" : "=d"(value) : "l"(p) : "memory");
    return value;
}
template <class T>
__device__ Complex<T> told(const Complex<T>* p) {
    return {told(&p->re), told(&p->im)};
}

// Words that are asked for again and again are slow to change: stores wait behind loads. So nobody looks before words
// can be there, nor at once again.
constexpr uint32 FIRST_LOOK = 1000, NEXT_LOOK = 100;  // clock cycles

__device__ inline void pause(uint32 cycles) {
    const uint32 begin = clock();
    while ((uint32)clock() - begin < cycles) {}
}

// a block that is lost would let the others wait for ever: after so many looks, half a minute, it is an error
__device__ inline void be_patient(uint32& looks) {
    if (++looks == 1u << 26) __trap();
}

// this lane's part of the sum of `count` numbers, when all are there
__device__ inline double awaited_share(const double* stored, int count, uint32 mark) {
    constexpr int AT_ONCE = 6;  // words that a lane asks for before it looks at one
    double sum = 0;
    uint32 looks = 0;
    for (int from = lane_id(); from < count; from += AT_ONCE * WARP) {
        double found[AT_ONCE];
        for (bool is_there = false; !is_there; be_patient(looks)) {
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u)
                found[u] = from + u * WARP < count ? told(stored + from + u * WARP) : marked(0., mark);
            is_there = true;
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) is_there &= has_mark(found[u], mark);
            if (!is_there) pause(NEXT_LOOK);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) sum += marked(found[u], 0);
    }
    return sum;
}

// ------------------------------------------------------------------------------------------------- sums and barriers

// ALONE: a block waits for nobody
template <int MOST, int THREADS, bool ALONE = false>
struct Exchange {
    static constexpr int WARPS = THREADS / WARP, AT_ONCE = 6;  // words that a lane asks for before it looks at one

    // Shared memory of a block.
    struct Shared {
        double of_warps[MOST][WARPS], total[MOST];
    };

    Shared& shared;
    double* const numbers;  // (2, MOST, gridDim.x); all bits set before the kernel
    uint32* const arrived;  // (gridDim.x,) the last barrier of a block; all bits set before the kernel
    uint32 n_barriers = 0, n_sums = 0;

    __device__ Exchange(Shared& shared, uint64* words)
        : shared(shared), numbers(reinterpret_cast<double*>(words)),
          arrived(reinterpret_cast<uint32*>(words + 2 * MOST * gridDim.x)) {}

    // What threads have written before is seen by all threads of all blocks afterwards. meanwhile() is called by every
    // thread, while others are waited for. These may have come to the next barrier already, before this block looks.
    template <class F>
    __device__ void barrier(F meanwhile) {
        __syncthreads();
        if constexpr (ALONE) {
            meanwhile();
            __syncthreads();
            return;
        }
        ++n_barriers;
        if (threadIdx.x == 0) {
            asm volatile("fence.acq_rel.gpu;" ::: "memory");
            asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(arrived + blockIdx.x), "r"(n_barriers) : "memory");
        }
        __syncwarp();
        meanwhile();
        if (threadIdx.x < WARP) {
            uint32 looks = 0;
            for (int from = lane_id(); from < gridDim.x; from += AT_ONCE * WARP)
                for (bool is_there = false; !is_there; be_patient(looks)) {
                    uint32 found[AT_ONCE];
#pragma unroll
                    for (int u = 0; u < AT_ONCE; ++u) {
                        found[u] = n_barriers;
                        if (from + u * WARP < gridDim.x)
                            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                                         : "=r"(found[u])
                                         : "l"(arrived + from + u * WARP)
                                         : "memory");
                    }
                    is_there = true;
#pragma unroll
                    for (int u = 0; u < AT_ONCE; ++u) is_there &= (int)(found[u] - n_barriers) >= 0;
                }
            asm volatile("fence.acq_rel.gpu;" ::: "memory");
        }
        __syncthreads();
    }

    // leaves the sum over the warp of each of N values, from `first` on, for the next sum(). They are 0 in a warp that
    // has none
    template <int N>
    __device__ void leave(int first, double (&value)[N], bool has_any) const {
        if (has_any)
#pragma unroll
            for (int apart = WARP / 2; apart; apart /= 2)  // all N at a time: shuffles take long
#pragma unroll
                for (int i = 0; i < N; ++i) value[i] += shuffle(value[i], lane_id() ^ apart);
        if (lane_id() == 0)
#pragma unroll
            for (int i = 0; i < N; ++i) shared.of_warps[first + i][threadIdx.x / WARP] = value[i];
    }

    // shared.total: of all that the warps of all blocks have left, in a fixed order. Two sets of words take turns: who
    // stores the second has all of the first, and all have seen the set before where anybody stores into it again.
    __device__ void sum() {
        __syncthreads();
        const int lane = lane_id();
        if constexpr (ALONE) {
            for (int i = threadIdx.x / WARP; i < MOST; i += WARPS) {
                const double sum = warp_sum(lane < WARPS ? shared.of_warps[i][lane] : 0.);
                if (lane == 0) shared.total[i] = sum;
            }
            __syncthreads();
            return;
        }
        const uint32 mark = n_sums >> 1 & 1;
        double* const round = numbers + (n_sums & 1) * (int64)MOST * gridDim.x;
        for (int i = threadIdx.x / WARP; i < MOST; i += WARPS) {
            const double sum = warp_sum(lane < WARPS ? shared.of_warps[i][lane] : 0.);
            if (lane == 0) tell(round + i * (int64)gridDim.x + blockIdx.x, marked(sum, mark));
        }
        if (threadIdx.x / WARP < MOST) pause(FIRST_LOOK);
        for (int i = threadIdx.x / WARP; i < MOST; i += WARPS) {
            const double total = warp_sum(awaited_share(round + i * (int64)gridDim.x, gridDim.x, mark));
            if (lane == 0) shared.total[i] = total;
        }
        ++n_sums;
        __syncthreads();
    }
};
