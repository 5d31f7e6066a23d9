// Conjugate gradients with a BBCSR matrix: all iterations in one cooperative kernel.
//
// After T. Chen, E. Carson, "Predict-and-Recompute Conjugate Gradient Variants", SIAM J. Sci. Comput. 42, 2020. An iteration is
//
//     s = A p;    mu = p @ s, delta = z @ s, gamma = s @ M s                               sums over all blocks
//     alpha = nu / mu;  beta = (nu - 2 alpha delta + alpha^2 gamma) / nu
//     x += alpha p;  r -= alpha s;  z = M r;  p = z + beta p;  nu = r @ z, and r @ r      sums over all blocks
//
// beta is that of Hestenes and Stiefel, of which it takes no sum over r, which is not there yet. The next nu is one, so errors
// of the prediction do not add up; x and r are updated as by Hestenes and Stiefel, and are as accurate. A kernel waits for all
// of its blocks twice an iteration then, not three times.

#include "bbcsr.cuh"
#include "bbcsr_product.cuh"
#include "cg.cuh"
#include "exchange.cuh"

// How tables and p are read: p changes while the kernel runs. TABLES_HERE: tables may lie in shared memory. PAST_L1: entries of p
// come from L2.
enum Reads { TABLES_HERE = 1, PAST_L1 = 2 };

template <int READS>
struct Read {
    template <class T>
    static __device__ T table(const T* p) {
        if constexpr (READS & TABLES_HERE) return *p;
        return stream(p);
    }
    template <class T>
    static __device__ T entry(const T* p) {
        if constexpr (READS & PAST_L1) return fresh(p);
        return *p;
    }
};

// Vectors of the system, and what of a block's parts of them it keeps in shared memory.
template <class Y>
struct Vectors {
    Y *x, *r, *z, *p, *s;
    const Y* inverse;
    double* history;
    int64 size;  // of blocks of M: 0 for the identity
    int64 shared_x, shared_r, shared_z, shared_s, shared_inverse;  // bytes from the begin of shared memory, or -1
    int64 shared_tables, end;
};

template <class A, class I, class M>
struct Bin {
    const A* data;
    const void* col;
    const M* present;
    int n_blocks;
    I base;
};

template <class T>
__device__ T* place(char* memory, int64 at, T* otherwise) {
    return at < 0 ? otherwise : reinterpret_cast<T*>(memory + at);
}

// copies to shared memory, 4 bytes at a time
template <class T>
__device__ T* copied(char*& to, const T* from, int64 count) {
    T* const made = reinterpret_cast<T*>(to);
    for (int64 i = threadIdx.x; i < count; i += blockDim.x) made[i] = from[i];
    to += (count * sizeof(T) + 15) / 16 * 16;
    return made;
}

// cg_bbcsr: at most `count` iterations
//
// mapping   a block has neighbouring bins, first_bin[b] to first_bin[b + 1]; S warps a bin and one thread of each a row in the
//           product, then one thread a row
// traffic   tables, as in bbcsr_matvec, from L2 where they fit; p is written and gathered. The rest is in shared memory where it
//           fits there
// requires  all blocks on the device at once; blocks of M lie in one block. words is 0
// races     p is written between two exchanges, and read between the second one and the next first one; all else is a block's own
template <class A, class Y, class I, class M, int B, int U_NARROW, int U_WIDE, bool HOLES, int S, int THREADS, int READS>
__global__ __launch_bounds__(THREADS, 1) void cg_bbcsr(const Bbcsr<A, I, M> m, const int* first_bin, const Vectors<Y> v,
                                                       Column* column, uint64* words, int64 count) {
    extern __shared__ uint4 memory[];
    constexpr int MOST = 3, WARPS = THREADS / WARP;
    Column c = *column;
    if (c.reason != RUNNING || count <= 0) return;

    // the block's rows, and where its parts of vectors are
    char* const shared = reinterpret_cast<char*>(memory);
    Exchange<MOST, THREADS> exchange{words, reinterpret_cast<double*>(shared)};
    const int bin = first_bin[blockIdx.x], n_bins = first_bin[blockIdx.x + 1] - bin;
    const int64 row = (int64)bin * WARP;
    const int rows = (int)max((int64)0, min(m.n_rows - row, (int64)n_bins * WARP));
    Bin<A, I, M>* const bins = reinterpret_cast<Bin<A, I, M>*>(shared + (MOST * gridDim.x * sizeof(double) + 15) / 16 * 16);
    Y* const x = place(shared, v.shared_x, v.x + row);
    Y* const r = place(shared, v.shared_r, v.r + row);
    Y* const z = place(shared, v.shared_z, v.z + row);
    Y* const s = place(shared, v.shared_s, v.s + row);
    Y* const p = v.p + row;
    const int size = (int)v.size;
    const Y* inverse = v.inverse + row;
    {
        char* tables = shared + v.shared_tables;
        for (int b = threadIdx.x; b < n_bins; b += THREADS) {
            const int64 first = m.bin_rowptr[bin + b];
            Bin<A, I, M> it;
            it.data = m.data + first;
            it.present = HOLES ? m.present + first / B : nullptr;
            it.n_blocks = (int)((m.bin_rowptr[bin + b + 1] - first) / (WARP * B));
            it.base = m.col_base[bin + b];
            it.col = it.base >= 0 ? (const void*)(m.col_narrow + m.col_ptr[bin + b]) : (const void*)(m.col_wide + m.col_ptr[bin + b]);
            bins[b] = it;
        }
        __syncthreads();
        if constexpr (READS & TABLES_HERE)
            for (int b = 0; b < n_bins; ++b) {
                const int64 slots = (int64)bins[b].n_blocks * WARP;
                const bool narrow = bins[b].base >= 0;
                const int64 bytes = slots * (B * sizeof(A) + (narrow ? 2 : sizeof(I)) + (HOLES ? sizeof(M) : 0)) + 48;
                if (tables + bytes > shared + v.end) break;
                Bin<A, I, M> it = bins[b];
                it.data = copied(tables, it.data, slots * B);
                it.col = narrow ? (const void*)copied(tables, (const uint16*)it.col, slots)
                                : (const void*)copied(tables, (const I*)it.col, slots);
                if (HOLES) it.present = copied(tables, it.present, slots);
                __syncthreads();
                if (threadIdx.x == 0) bins[b] = it;
            }
    }
    for (int i = threadIdx.x; i < rows; i += THREADS) {
        if (v.shared_x >= 0) x[i] = v.x[row + i];
        if (v.shared_r >= 0) r[i] = v.r[row + i];
        if (size > 1 && v.shared_z >= 0) z[i] = v.z[row + i];
        if (size == 1 && v.shared_inverse >= 0) reinterpret_cast<Y*>(shared + v.shared_inverse)[i] = inverse[i];
    }
    if (size == 1 && v.shared_inverse >= 0) inverse = reinterpret_cast<Y*>(shared + v.shared_inverse);
    __syncthreads();

    for (int64 left = count; left; --left) {
        for (int item = threadIdx.x / WARP; item < n_bins * S; item += WARPS) {
            const Bin<A, I, M> it = bins[item / S];
            const int part = item % S;
            const Y sum = it.base >= 0 ? row_sum<Read<READS>, A, Y, I, M, B, U_NARROW, HOLES, S>(
                                             (const uint16*)it.col, it.data, it.present, it.n_blocks, part, v.p + (int64)it.base * B)
                                       : row_sum<Read<READS>, A, Y, I, M, B, U_WIDE, HOLES, S>((const I*)it.col, it.data, it.present,
                                                                                       it.n_blocks, part, v.p);
            const int at = item / S * WARP + lane_id();
            if (S > 1 || at < rows) s[part * n_bins * WARP + at] = sum;
        }
        __syncthreads();
        double sums[3] = {};
        for (int i = threadIdx.x; i < rows; i += THREADS) {
            Y sum = s[i];
#pragma unroll
            for (int part = 1; part < S; ++part) sum = add(sum, s[part * n_bins * WARP + i]);
            if (S > 1) s[i] = sum;
            const Y of_r = size == 0 ? r[i] : size == 1 ? mac(inverse[i], r[i], Y{}) : z[i];
            sums[0] += dot(p[i], sum);
            sums[1] += dot(of_r, sum);
            if (size <= 1) sums[2] += dot(sum, size ? mac(inverse[i], sum, Y{}) : sum);
        }
        if (size > 1) {
            __syncthreads();
            for (int i = threadIdx.x; i < rows; i += THREADS)
                sums[2] += dot(s[i], block_row(v.inverse, size, m.n_rows, row + i, s, row, 1));
        }
        exchange.sum(sums, false);

        take_step(c, sums[0]);
        if (c.reason != RUNNING) break;
        c.beta = max(0., quotient(c.nu - 2 * c.alpha * sums[1] + c.alpha * c.alpha * sums[2], c.nu));
        double weights[2] = {};
        for (int i = threadIdx.x; i < rows; i += THREADS) {
            const Y of_r = plus(r[i], -c.alpha, s[i]), direction = p[i];
            r[i] = of_r;
            x[i] = plus(x[i], c.alpha, direction);
            if (size <= 1) {
                const Y entry = size ? mac(inverse[i], of_r, Y{}) : of_r;
                p[i] = plus(entry, c.beta, direction);
                weights[0] += dot(of_r, entry);
            }
            weights[1] += dot(of_r, of_r);
        }
        if (size > 1) {
            __syncthreads();
            for (int i = threadIdx.x; i < rows; i += THREADS) {
                const Y entry = block_row(v.inverse, size, m.n_rows, row + i, r, row, 1);
                z[i] = entry;
                p[i] = plus(entry, c.beta, p[i]);
                weights[0] += dot(r[i], entry);
            }
        }
        exchange.sum(weights, true);

        c.nu = weights[0];
        const bool writes = v.history && blockIdx.x == 0 && threadIdx.x == 0;
        end_iteration(c, c.nu, weights[1], writes ? v.history + c.iterations + 1 : nullptr);
        if (c.reason != RUNNING) break;
    }
    for (int i = threadIdx.x; i < rows; i += THREADS) {
        if (v.shared_x >= 0) v.x[row + i] = x[i];
        if (v.shared_r >= 0) v.r[row + i] = r[i];
        if (size > 1 && v.shared_z >= 0) v.z[row + i] = z[i];
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *column = c;
}
