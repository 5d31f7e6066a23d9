// y = A @ x for a stack of BBCSR arrays: one structure, and a value table for each element.
//
// A thread block takes some elements in turn for the same bins, so that columns come from memory once for all of them. The
// terms of a row are added in the order of an array's own product, which the host asked for: see gpu/bbcsr.py.

#include "values.cuh"
#include "bbcsr.cuh"
#include "bbcsr_product.cuh"

#if __CUDA_ARCH__ == 750
constexpr int MOST_THREADS = 1024;  // of a multiprocessor
#else
constexpr int MOST_THREADS = 1536;  // at least
#endif
template <int BLOCKS, int THREADS>
constexpr int FITTING = BLOCKS * THREADS > MOST_THREADS ? MOST_THREADS / THREADS : BLOCKS;

// how far an element's numbers are from those of the one before
struct Elements {
    int64 count, values, x, y;
    int64 in_turn;  // elements of a thread block

    __device__ int64 first() const { return blockIdx.y * in_turn; }
    __device__ int64 end() const { return min(count, first() + in_turn); }
};

// bbcsr_stack_rows: rows of at most E single columns
//
// mapping   a thread a row; its columns stay in registers, its values and x are loaded together
// traffic   slot: sizeof(A) bytes and x; row: sizeof(Y); for a block's elements a slot's 2 or sizeof(I) bytes
// requires  an array's product adds slots in turn. PADS: with padding, as bbcsr_matvec; else without, as row_lanes_matvec
// races     none: a thread owns a row
template <class A, class Y, class I, int E, bool PADS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, FITTING<BLOCKS, THREADS>) void bbcsr_stack_rows(const Bbcsr<A, I, uint8> m,
                                                                                      const Elements of,
                                                                                      const Y* __restrict__ x,
                                                                                      Y* __restrict__ y) {
    const int64 row = blockIdx.x * (int64)THREADS + threadIdx.x, bin = row / WARP;
    if (bin >= m.n_bins) return;
    const Opened<A>& values = m.data.opened();
    const Bin<A, I, uint8, 1, false> own(m, values, bin, lane_id());
    I c[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
        c[e] = I(-1);
        if (e < own.n_blocks) {
            if (own.is_narrow()) {
                const uint16 near = cached(own.narrow(m) + e * WARP);
                if (!is_padding<I>(near, 0)) c[e] = (I)(own.base + near);
            } else {
                c[e] = cached(own.wide(m) + e * WARP);
            }
        }
    }
#pragma unroll 1
    for (int64 element = of.first(); element < of.end(); ++element) {
        const Opened<A> data = own.data + element * of.values;
        const Y* const from = x + element * of.x;
        Stored<A> v[E];
        Y xs[E], sum{};
#pragma unroll
        for (int e = 0; e < E; ++e) v[e] = c[e] >= 0 ? once<false>(data.slot + e * WARP) : Stored<A>{};
#pragma unroll
        for (int e = 0; e < E; ++e) xs[e] = c[e] >= 0 ? cached(from + c[e]) : Y{};
#pragma unroll
        for (int e = 0; e < E; ++e)
            mac_unless(PADS ? e >= own.n_blocks : c[e] < 0, data.template decoded<Y>(v[e]), xs[e], sum);
        if (row < m.n_rows) y[element * of.y + row] = sum;
    }
}

// bbcsr_stack: any bins, as bbcsr_matvec has them
//
// mapping   S warps a bin, as in bbcsr_matvec
// traffic   as there, but columns, which the other elements find in L2
// races     none: S threads own a row; shared memory is read between barriers
template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S, int THREADS>
__global__ __launch_bounds__(THREADS) void bbcsr_stack(const Bbcsr<A, I, M> m, const Elements of, const Y* __restrict__ x,
                                                       Y* __restrict__ y) {
    typedef ReadOnce<true, false> Read;
    constexpr int BINS = THREADS / (WARP * S);  // of a thread block
    __shared__ Y sums[S > 1 ? THREADS : 1];
    const int part = S == 1 ? 0 : threadIdx.x / WARP % S;
    const int64 bin = blockIdx.x * (int64)BINS + threadIdx.x / (WARP * S), row = bin * WARP + lane_id();
    const Opened<A>& values = m.data.opened();
    for (int64 element = of.first(); element < of.end(); ++element) {
        Y sum{};
        if (bin < m.n_bins) {
            const Bin<A, I, M, B, HOLES> own(m, values + element * of.values, bin, 0);
            const Y* const from = x + element * of.x;
            sum = own.is_narrow()
                ? row_sum<Read, A, Y, I, M, B, U_NARROW, HOLES, S>(own.narrow(m), own.data, own.present, own.n_blocks, part,
                                                                   from + own.origin())
                : row_sum<Read, A, Y, I, M, B, U_WIDE, HOLES, S>(own.wide(m), own.data, own.present, own.n_blocks, part, from);
        }
        if constexpr (S > 1) {
            __syncthreads();  // the last element's are read
            sums[threadIdx.x] = sum;
            __syncthreads();
            if (part == 0)
                for (int p = 1; p < S; ++p) sum = add(sum, sums[threadIdx.x + p * WARP]);
        }
        if (part == 0 && row < m.n_rows) y[element * of.y + row] = sum;
    }
}
