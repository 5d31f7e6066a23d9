// Blocks of a cooperative kernel wait for each other, and add numbers up. All blocks must be on the device at the same time.
//
// Each block stores into words of its own, and every block reads those of all: a store and a load, where a counter would take an
// atomic, a load of the counter and a load of the sums. Words say themselves whether they are there: a number that is not is a
// nan that no sum is.

template <int MOST, int THREADS>
struct Exchange {
    static constexpr int WARPS = THREADS / WARP, AT_ONCE = 6;  // words that a lane asks for before it looks at one
    static constexpr uint32 PATIENCE = 1u << 26;  // looks before a lost block is an error: half a minute
    static constexpr uint64 NOTHING = ~0ull;

    // Shared memory of a block.
    struct Shared {
        double of_warps[MOST][WARPS], total[MOST];
    };

    Shared& shared;
    uint64* const numbers;  // (2, MOST, gridDim.x), NOTHING before the kernel
    uint32* const arrived;  // (gridDim.x,) the last barrier of a block; all bits set before the kernel
    uint32 n_barriers = 0, n_sums = 0;

    __device__ Exchange(Shared& shared, uint64* words)
        : shared(shared), numbers(words), arrived(reinterpret_cast<uint32*>(words + 2 * MOST * gridDim.x)) {}

    // What threads have written before is seen by all threads of all blocks afterwards. meanwhile() is called by every thread,
    // while others are waited for.
    template <class F>
    __device__ void barrier(F meanwhile) {
        __syncthreads();
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
                    for (int u = 0; u < AT_ONCE; ++u) is_there &= found[u] == n_barriers;
                }
            asm volatile("fence.acq_rel.gpu;" ::: "memory");
        }
        __syncthreads();
    }

    // leaves the sum over the warp of each of N values, from `first` on, for the next sum(): 0 where the warp has none
    template <int N>
    __device__ void leave(int first, const double (&value)[N], bool has_any) const {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const double sum = has_any ? warp_sum(value[i]) : 0;
            if (lane_id() == 0) shared.of_warps[first + i][threadIdx.x / WARP] = sum;
        }
    }

    // shared.total: of all that the warps of all blocks have left, in a fixed order. Between two calls there must be a barrier.
    __device__ void sum() {
        __syncthreads();
        const int lane = lane_id();
        uint64* const round = numbers + (n_sums & 1) * (int64)MOST * gridDim.x;
        for (int i = threadIdx.x / WARP; i < MOST; i += WARPS) {
            const double sum = warp_sum(lane < WARPS ? shared.of_warps[i][lane] : 0.);
            if (lane == 0) {
                uint64 bits = __double_as_longlong(sum);
                if (bits == NOTHING) bits = 0x7ff8000000000000ull;
                asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(round + i * gridDim.x + blockIdx.x), "l"(bits) : "memory");
            }
        }
        for (int i = threadIdx.x / WARP; i < MOST; i += WARPS) {
            const double total = warp_sum(share_of(round + i * gridDim.x));
            if (lane == 0) shared.total[i] = total;
        }
        // The words of the last sum but one: all have read them, as they have passed a barrier since, and all will see that they
        // are free, after the next barrier.
        if (threadIdx.x < MOST && n_sums)
            numbers[((n_sums - 1) & 1) * (int64)MOST * gridDim.x + threadIdx.x * gridDim.x + blockIdx.x] = NOTHING;
        ++n_sums;
        __syncthreads();
    }

private:
    // this lane's part of the sum of what blocks have stored, when it is there
    __device__ double share_of(const uint64* stored) const {
        double sum = 0;
        uint32 looks = 0;
        for (int from = lane_id(); from < gridDim.x; from += AT_ONCE * WARP) {
            uint64 found[AT_ONCE];
            for (bool is_there = false; !is_there; be_patient(looks)) {
#pragma unroll
                for (int u = 0; u < AT_ONCE; ++u) {
                    found[u] = 0;
                    if (from + u * WARP < gridDim.x)
                        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found[u]) : "l"(stored + from + u * WARP) : "memory");
                }
                is_there = true;
#pragma unroll
                for (int u = 0; u < AT_ONCE; ++u) is_there &= found[u] != NOTHING;
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) sum += __longlong_as_double((int64)found[u]);
        }
        return sum;
    }

    static __device__ void be_patient(uint32& looks) {
        if (++looks == PATIENCE) __trap();
    }
};
