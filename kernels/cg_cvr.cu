// Conjugate gradients with a CVR matrix: all iterations in one cooperative kernel.

#include "values.cuh"
#include "cvr.cuh"
#include "cvr_product.cuh"
#include "cg.cuh"
#include "exchange.cuh"
#include "cg_iterations.cuh"

// entries of p, which changes while the kernel runs
template <class Y>
struct ChangingX {
    const Y* x;
    template <class C>
    __device__ Y operator()(C col) const {
        return x[col];
    }
};

// The product of a block's chunks, whose rows may be any block's: so all blocks wait for each other after it.
template <class A, class Y, class I, int L, int U, bool CUT>
struct ChunkProduct {
    const Cvr<A, I>& m;
    const Opened<A>& values;
    const Cuts<Y>& cuts;
    const Y* const p;
    Y* const all;  // of s
    const Y* const s;  // the block's rows of it
    const int64 first, end;  // chunks

    __device__ void prepare() const {}

    template <class E>
    __device__ void run(E& exchange, uint32) const {
        for (int64 chunk = first + threadIdx.x / WARP; chunk < end; chunk += blockDim.x / WARP) {
            const Chunk<A, Y, I, L, CUT> c(m, cuts, chunk);
            const auto sums = c.base >= 0
                ? chunk_matvec<A, Y, I, L, U, true, PLAIN, CUT, false>(m, values, c, m.col_narrow + c.col_start,
                                                                       ChangingX<Y>{p + c.base}, all, cuts, Y{}, Y{})
                : chunk_matvec<A, Y, I, L, U, true, PLAIN, CUT, false>(m, values, c, m.col_wide + c.col_start, ChangingX<Y>{p},
                                                                       all, cuts, Y{}, Y{});
            c.template finish<Cuts<Y>::AT_ONCE>(sums, all, cuts, Y{}, Y{}, PLAIN);
        }
        exchange.barrier([] {});
    }

    __device__ Y sum(int i) const { return s[i]; }
};

// cg_cvr: at most `count` iterations
//
// mapping   a block has its share of the chunks, one warp each, and the rows first_row[b] to first_row[b + 1] for the
//           rest
// traffic   tables, as in cvr_matvec; p is written and gathered, s written and read
// requires  as iterate(); s in global memory, 0 in empty rows
// races     of p: see cg_iterations.cuh; s is written before a barrier of its own, and read before the next one; all
//           else is a block's own
template <class A, class Y, class I, int L, int U, bool CUT, int THREADS>
__global__ __launch_bounds__(THREADS, 1) void cg_cvr(const Cvr<A, I> m, const Cuts<Y> cuts, int64 n, const int64* first_row,
                                                     const Vectors<Y> v, Column* column, uint64* words, int64 count) {
    extern __shared__ uint4 memory[];
    const Part<Y, THREADS, false, 0> part(v, reinterpret_cast<char*>(memory), first_row[blockIdx.x], first_row[blockIdx.x + 1], n);
    const ChunkProduct<A, Y, I, L, U, CUT> product{m, m.val.opened(), cuts, v.p, v.s, part.s, m.n_chunks * blockIdx.x / gridDim.x,
                                                   m.n_chunks * (blockIdx.x + 1) / gridDim.x};
    iterate(part, product, column, words, count);
}
