// Copies of BBCSR's bins into shared memory by the device's copy engine, which a barrier there counts. The host calls kernels
// that need it from sm_90 on alone.

#if __CUDA_ARCH__ >= 900
#define FROM_90(...) asm volatile(__VA_ARGS__)
#else
#define FROM_90(...)
#endif

__device__ inline unsigned in_shared(const void* place) { return (unsigned)__cvta_generic_to_shared(place); }

// for a phase that so many arrivals end, with the bytes that they expect
__device__ inline void set_up(uint64* barrier, unsigned arrivals) {
    FROM_90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(in_shared(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void arrive(uint64* barrier) {
    FROM_90("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(in_shared(barrier)) : "memory");
}
// arrives, and expects bytes
__device__ inline void expect(uint64* barrier, unsigned bytes) {
    FROM_90("{.reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}" ::"r"(in_shared(barrier)), "r"(bytes)
                 : "memory");
}
// addresses and `bytes` are multiples of 16
__device__ inline void copy(void* to, const void* from, unsigned bytes, uint64* barrier) {
    FROM_90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(in_shared(to)),
                 "l"(from), "r"(bytes), "r"(in_shared(barrier))
                 : "memory");
}
// until the barrier has passed its phase of this parity
__device__ inline void wait_for(uint64* barrier, unsigned parity) {
    FROM_90("{.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;}" ::"r"(
                     in_shared(barrier)),
                 "r"(parity)
                 : "memory");
}
// between what this thread stores and later copies to the same place
__device__ inline void before_copies() {
    FROM_90("fence.proxy.async.shared::cta;" ::: "memory");
}

// what stands for padding among columns of type C, as 32 bits
template <class C>
constexpr unsigned PADDING = 0xffffffffu >> 32 - 8 * sizeof(C);

// where a bin lies in the tables; none has a negative length
template <class I>
struct Place {
    int64 slots, columns;
    int n_slots;
    I base;

    template <class A, class M>
    __device__ Place(const Bbcsr<A, I, M>& m, int64 bin) : slots(0), columns(0), n_slots(-1), base(0) {
        if (bin >= m.n_bins) return;
        slots = cached(m.bin_rowptr + bin);
        n_slots = (int)(cached(m.bin_rowptr + bin + 1) - slots);
        columns = cached(m.col_ptr + bin);
        base = cached(m.col_base + bin);
    }
    __device__ bool is_narrow() const { return base >= 0; }
};

// Copies the values and columns of a bin, and lets the barrier expect them: one arrival.
template <class A, class I, class M>
__device__ void copy_tables(void* to_values, void* to_columns, const Bbcsr<A, I, M>& m, const Opened<A>& values,
                            const Place<I>& place, uint64* barrier) {
    const unsigned n = place.n_slots, size = place.is_narrow() ? 2 : sizeof(I);
    expect(barrier, n * (Values<A>::BYTES + size));
    if (n == 0) return;
    if (Values<A>::BYTES) copy(to_values, values.slot + place.slots, n * Values<A>::BYTES, barrier);
    copy(to_columns, place.is_narrow() ? (const void*)(m.col_narrow + place.columns) : (const void*)(m.col_wide + place.columns),
         n * size, barrier);
}
