// Conjugate gradients with a BBCSR matrix: all iterations in one cooperative kernel.

#include "values.cuh"
#include "bbcsr.cuh"
#include "bbcsr_product.cuh"
#include "cg.cuh"
#include "exchange.cuh"
#include "cg_iterations.cuh"

// Tables are in global or in shared memory, so addresses are generic ones; what comes from global memory is streamed
// past L1. p changes while the kernel runs; MARKED, entries without this mark are not there yet.
template <bool STREAM, bool MARKED>
struct ReadAnywhere {
    static constexpr bool AT_ONCE = false;
    uint32 mark;

    static __device__ uint16 word(const uint16* p) {
        uint16 value;
        asm("ld.cs.u16 %0, [%1];" : "=h"(value) : "l"(p));
        return value;
    }
    static __device__ uint32 word(const uint32* p) {
        uint32 value;
        asm("ld.cs.u32 %0, [%1];" : "=r"(value) : "l"(p));
        return value;
    }
    static __device__ uint2 word(const uint2* p) {
        uint2 value;
        asm("ld.cs.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(p));
        return value;
    }
    static __device__ uint4 word(const uint4* p) {
        uint4 value;
        asm("ld.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(p));
        return value;
    }
    static __device__ uint8 word(const uint8* p) { return *p; }

    static __device__ Nothing table(const Nothing*) { return {}; }
    template <class T>
    static __device__ T table(const T* p) {
        if constexpr (!STREAM) return *p;
        typedef typename Word<sizeof(T)>::Type Part;
        union Bits {
            Part word;
            T value;
            __device__ Bits() {}
        } bits;
        bits.word = word(reinterpret_cast<const Part*>(p));
        return bits.value;
    }
    template <class T>
    static __device__ T entry(const T* p) {
        if constexpr (MARKED)
            return told(p);
        else
            return *p;
    }
    template <class Y>
    __device__ Y none() const {
        return marked(Y{}, mark);
    }
    template <class Y, int U, int B, class F>
    __device__ void gather(Y (&xs)[U][B], F load) const {
        load();
        if constexpr (MARKED) {
            for (uint32 looks = 0; !are_there(xs); be_patient(looks)) {
                pause(NEXT_LOOK);
                load();
            }
#pragma unroll
            for (int u = 0; u < U; ++u)
#pragma unroll
                for (int j = 0; j < B; ++j) xs[u][j] = marked(xs[u][j], 0);
        }
    }
    template <class Y, int U, int B>
    __device__ bool are_there(const Y (&xs)[U][B]) const {
        bool all = true;
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int j = 0; j < B; ++j) all &= has_mark(xs[u][j], mark);
        return all;
    }
};

// A bin's tables, in global or in shared memory.
template <class A, class I, class M>
struct OwnBin {
    const Stored<A>* data;
    const void* col;  // uint16 in a narrow bin, else I
    const M* present;
    int n_blocks;
    I base;
};

// copies to shared memory; all threads of the block must call it
template <class T>
__device__ T* copied(char*& to, const T* from, int64 count) {
    T* const made = reinterpret_cast<T*>(to);
    for (int64 i = threadIdx.x; i < count; i += blockDim.x) made[i] = from[i];
    to += (count * sizeof(T) + 15) / 16 * 16;
    return made;
}

// The product of a block's rows. Its first and its last bin may hold rows of others, whose sums are left out.
template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S, int THREADS, bool STREAM,
          bool MARKED>
struct BlockProduct {
    const Bbcsr<A, I, M>& m;
    const Opened<A>& values;
    const Stored<A>* const slots;  // of `values`
    OwnBin<A, I, M>* const bins;
    const int first, n_bins;
    const int others, rows;  // rows of the first bin that are others', and the block's own
    const Y* const p;
    Y* const s;  // (S, rows)
    char *const free, *const end;  // of shared memory

    __device__ void prepare() const {
        find();
        keep(free, end);
    }

    __device__ void find() const {
        for (int b = threadIdx.x; b < n_bins; b += THREADS) {
            const int bin = first + b;
            const int64 begin = m.bin_rowptr[bin], col = m.col_ptr[bin];
            const I base = m.col_base[bin];
            bins[b] = {slots + begin, base >= 0 ? (const void*)(m.col_narrow + col) : (const void*)(m.col_wide + col),
                       HOLES ? m.present + begin / B : nullptr, (int)((m.bin_rowptr[bin + 1] - begin) / (WARP * B)), base};
        }
        __syncthreads();
    }

    // moves the tables of as many bins as there is room for to shared memory
    __device__ void keep(char* to, const char* end) const {
        for (int b = 0; b < n_bins; ++b) {
            OwnBin<A, I, M> bin = bins[b];
            const int64 slots = (int64)bin.n_blocks * WARP;
            const bool narrow = bin.base >= 0;
            if (slots * (int64)(B * Values<A>::BYTES + (narrow ? 2 : sizeof(I)) + (HOLES ? sizeof(M) : 0)) + 48 > end - to) break;
            if (Values<A>::BYTES) bin.data = copied(to, bin.data, slots * B);
            bin.col = narrow ? (const void*)copied(to, (const uint16*)bin.col, slots)
                             : (const void*)copied(to, (const I*)bin.col, slots);
            if (HOLES) bin.present = copied(to, bin.present, slots);
            __syncthreads();
            if (threadIdx.x == 0) bins[b] = bin;
        }
        __syncthreads();
    }

    template <class E>
    __device__ void run(E&, uint32 mark) const {
        typedef ReadAnywhere<STREAM, MARKED> Read;
        const Read read{mark};
        for (int item = threadIdx.x / WARP; item < n_bins * S; item += THREADS / WARP) {
            const OwnBin<A, I, M> bin = bins[item / S];
            const Opened<A> data = values.from(bin.data);
            const int part = item % S, at = item / S * WARP + lane_id() - others;
            const Y sum = bin.base >= 0
                ? row_sum<Read, A, Y, I, M, B, U_NARROW, HOLES, S>((const uint16*)bin.col, data, bin.present, bin.n_blocks, part,
                                                                  p + (int64)bin.base * B, read)
                : row_sum<Read, A, Y, I, M, B, U_WIDE, HOLES, S>((const I*)bin.col, data, bin.present, bin.n_blocks, part, p,
                                                                read);
            if (at >= 0 && at < rows) s[part * rows + at] = sum;
        }
        __syncthreads();
    }

    __device__ Y sum(int i) const {
        Y total = s[i];
#pragma unroll
        for (int part = 1; part < S; ++part) total = add(total, s[part * rows + i]);
        return total;
    }
};

// cg_bbcsr: at most `count` iterations
//
// mapping   a block has the rows first_row[b] to first_row[b + 1], whole blocks of M; in the product S warps a bin that
//           holds any of them and one thread of each a row, in the rest one thread a row
// traffic   tables, as in bbcsr_matvec, if they are not in shared memory; p is written and gathered
// requires  as iterate(); s in shared memory if S > 1, p if MARKED
// races     of p: see cg_iterations.cuh; all else is a block's own
template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S, int THREADS, bool STREAM,
          bool MARKED, int SIZE>
__global__ __launch_bounds__(THREADS, 1) void cg_bbcsr(const Bbcsr<A, I, M> m, const int64* first_row, const Vectors<Y> v,
                                                       Column* column, uint64* words, int64 count) {
    extern __shared__ uint4 memory[];
    char* const shared = reinterpret_cast<char*>(memory);
    const int64 row = first_row[blockIdx.x], end = first_row[blockIdx.x + 1];
    const int first = (int)(row / WARP), n_bins = end > row ? (int)((end + WARP - 1) / WARP) - first : 0;
    const Part<Y, THREADS, MARKED, SIZE> part(v, shared, row, end, m.n_rows);
    const BlockProduct<A, Y, I, M, B, U_NARROW, U_WIDE, HOLES, S, THREADS, STREAM, MARKED> product{
        m, m.data.opened(), m.data.slot, reinterpret_cast<OwnBin<A, I, M>*>(shared), first, n_bins, (int)(row % WARP), part.rows, v.p,
        part.s, shared + v.free, shared + v.end};
    iterate(part, product, column, words, count);
}

constexpr int EXCHANGED = 11;  // words of a block for Exchange

// cg_bbcsr_stack: the same of a stack of plain values, each system by itself
//
// mapping   the blocks of one blockIdx.y solve one system after the other. ALONE: one block each, so no system waits for another
// requires  all blocks on the device at once, unless ALONE; words of each system
template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S, int THREADS, bool MARKED, int SIZE,
          bool ALONE>
__global__ __launch_bounds__(THREADS, ALONE ? 2 : 1) void cg_bbcsr_stack(const Bbcsr<A, I, M> m, const int64* first_row,
                                                                         const StackVectors<Y> stack, Column* column,
                                                                         uint64* words, int64 count) {
    extern __shared__ uint4 memory[];
    char* const shared = reinterpret_cast<char*>(memory);
    const int64 row = first_row[blockIdx.x], end = first_row[blockIdx.x + 1];
    const int first = (int)(row / WARP), n_bins = end > row ? (int)((end + WARP - 1) / WARP) - first : 0;
    for (int64 system = blockIdx.y; system < stack.count; system += gridDim.y) {
        __syncthreads();  // the last system's shared memory is read
        const Vectors<Y> v = stack.of(system);
        const Opened<A> values = m.data.opened() + system * stack.values_apart;
        const Part<Y, THREADS, MARKED, SIZE, ALONE> part(v, shared, row, end, m.n_rows);
        const BlockProduct<A, Y, I, M, B, U_NARROW, U_WIDE, HOLES, S, THREADS, false, MARKED> product{
            m, values, values.slot, reinterpret_cast<OwnBin<A, I, M>*>(shared), first, n_bins, (int)(row % WARP), part.rows,
            ALONE ? part.p : v.p, part.s, shared + v.free, shared + v.end};
        iterate(part, product, column + system, words + system * EXCHANGED * gridDim.x, count, stack.count);
    }
}
