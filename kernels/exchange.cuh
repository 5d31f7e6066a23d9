// Sums over all blocks of a cooperative kernel, which are barriers too.
//
// Each block stores its sums in words of its own, and every block reads those of all: a store and a load, where a counter would
// take an atomic, a load of the counter and a load of the sums. A double is stored as two 64-bit words, each of 32 bits of it
// and the number of the exchange, so that a word says itself whether it is there. Words of the last exchange but one are
// overwritten: whoever does so has seen all blocks in the last one, so they have read these.
//
// All blocks must be on the device at the same time.

template <int MOST, int THREADS>
struct Exchange {
    uint64* const words;  // (2, MOST, gridDim.x, 2), 0 before the kernel
    double* const shared;  // of MOST * gridDim.x numbers, the block's own
    uint32 number = 0;  // of exchanges so far

    static constexpr int WARPS = THREADS / WARP;
    static constexpr uint32 PATIENCE = 1u << 22;  // looks before a lost block is an error: seconds

    static __host__ __device__ constexpr int64 n_words(int n_blocks) { return 4ll * MOST * n_blocks; }

    // value[i]: this thread's number, then the sum over all threads of all blocks, in a fixed order. What threads
    // have written before is seen by all afterwards, if it `publishes`.
    template <int N>
    __device__ void sum(double (&value)[N], bool publishes) {
        static_assert(N <= MOST && N <= WARPS && WARPS <= WARP, "a warp for each sum");
        __shared__ double of_warps[MOST][WARPS], total[MOST];
        const int warp = threadIdx.x / WARP, lane = lane_id(), n_blocks = gridDim.x;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            value[i] = warp_sum(value[i]);
            if (lane == 0) of_warps[i][warp] = value[i];
        }
        __syncthreads();
        ++number;
        uint64* const round = words + (number & 1) * 2ll * MOST * n_blocks;
        if (warp < N) {
            const double sum = warp_sum(lane < WARPS ? of_warps[warp][lane] : 0.);
            if (lane == 0) {
                if (publishes) asm volatile("fence.acq_rel.gpu;" ::: "memory");
                store(round + 2 * (warp * n_blocks + blockIdx.x), sum);
            }
        }
        for (int i = threadIdx.x; i < N * n_blocks; i += THREADS) shared[i] = load(round + 2 * i);
        if (publishes) asm volatile("fence.acq_rel.gpu;" ::: "memory");
        __syncthreads();
        if (warp < N) {
            double sum = 0;
            for (int g = lane; g < n_blocks; g += WARP) sum += shared[warp * n_blocks + g];
            sum = warp_sum(sum);
            if (lane == 0) total[warp] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] = total[i];
    }

private:
    __device__ void store(uint64* at, double value) const {
        const uint64 bits = __double_as_longlong(value), mark = (uint64)number << 32;
        asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(mark | (bits & 0xffffffff)), "l"(mark | bits >> 32)
                     : "memory");
    }
    // waits for it
    __device__ double load(const uint64* at) const {
        uint64 low, high;
        for (uint32 looks = 0;; ++looks) {
            asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(at) : "memory");
            if (low >> 32 == number && high >> 32 == number) break;
            if (looks == PATIENCE) __trap();
        }
        return __longlong_as_double((int64)(high << 32 | (low & 0xffffffff)));
    }
};
