// y = alpha * A @ x + beta * y for CVR.

#include "cvr.cuh"

// cvr_matvec: all chunks
//
// mapping   one warp a chunk, one thread a lane (L lanes; threads beyond them idle); one thread an empty row
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes, and x; row: sizeof(I) + sizeof(Y)
// requires  every row has one owner (invariant 5), so each y is stored once and y need not be zeroed;
//           pads follow a lane's last record (invariant 6), so their products are never stored
// races     none: rows, carries and empty rows have one owner each; parts of a stolen row are added in lane order
//
// U steps are loaded before the first is used. Where a group of U steps has records, their targets are loaded with the
// columns, so that no store waits for them. Steps past the chunk's last repeat that one: their sums are never stored.
//
// `x` gives the entry of x for a column as stored.
template <class A, class Y, class I, int L, int U, class C, class X>
__device__ void chunk_matvec(const Cvr<A, I>& m, int64 chunk, const C* col, const X& x, Y* y, Y* carry, Y alpha, Y beta,
                             int update) {
    const int lane = lane_id();
    const bool active = L == WARP || lane < L;
    const unsigned below = (1u << lane) - 1;
    const int64 first = m.step_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const int slot = active ? lane : 0;
    const A* val = m.val + first * L + slot;
    col += slot;
    const uint32* mask = m.rec_mask + first;
    const I* wb = m.rec_wb + m.rec_ptr[chunk];
    const I tail = active ? m.tail[chunk * L + lane] : I(-1);
    const I carry_row = m.carry_row[chunk];

    auto put = [&](I row, Y sum) {
        if (row == carry_row)
            carry[chunk] = scaled(sum, alpha, update);
        else
            store(y + row, sum, alpha, beta, update);
    };

    Y sum{}, own{}, stolen{};  // the running sum; the lane's own entry of tail; what it adds to its victim's
    int victim = -1;
    for (int begin = 0; begin < n_steps; begin += WARP) {
        const unsigned mine = begin + lane < n_steps ? stream(mask + begin + lane) : 0;
        const unsigned has_records = __ballot_sync(FULL, mine != 0);
        const int count = min(WARP, n_steps - begin);
#pragma unroll 1
        for (int group = 0; group < count; group += U) {
            C c[U];
            A v[U];
            Y xs[U];
            I target[U];
            unsigned ends = 0;
#pragma unroll
            for (int u = 0; u < U; ++u) c[u] = stream(col + (int64)min(begin + group + u, n_steps - 1) * L);
#pragma unroll
            for (int u = 0; u < U; ++u) v[u] = stream(val + (int64)min(begin + group + u, n_steps - 1) * L);
            if (has_records >> group & ((1u << U) - 1)) {
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const unsigned records = __shfl_sync(FULL, mine, (group + u) & (WARP - 1));
                    const unsigned end = records >> lane & 1;
                    if (end) target[u] = stream(wb + __popc(records & below));
                    ends |= end << u;
                    wb += __popc(records);
                }
            }
#pragma unroll
            for (int u = 0; u < U; ++u) xs[u] = x(c[u]);
#pragma unroll
            for (int u = 0; u < U; ++u) {
                sum = mac(Widen<Y, A>::from(v[u]), xs[u], sum);
                if (ends >> u & 1) {
                    const I to = target[u];
                    if (to >= 0)
                        put(to, sum);
                    else if (~to == lane)
                        own = sum;
                    else {
                        stolen = sum;
                        victim = (int)~to;
                    }
                    sum = Y{};
                }
            }
        }
    }

    for (unsigned thieves = __ballot_sync(FULL, victim >= 0); thieves; thieves &= thieves - 1) {
        const int thief = __ffs(thieves) - 1;
        const int entry = __shfl_sync(FULL, victim, thief);
        const Y part = shuffle(stolen, thief);
        if (lane == entry) own = add(own, part);
    }
    if (tail >= 0) put(tail, own);
}

// x where it lies
template <class Y>
struct Vector {
    const Y* x;
    template <class C>
    __device__ Y operator()(C col) const {
        return cached(x + col);
    }
};

// x with its popular entries packed: column ~i is entry i of these, the first of which lie in shared memory
template <class Y>
struct PackedVector {
    const Y* x;
    const Y* popular;
    const Y* shared;
    int n_shared;
    template <class C>
    __device__ Y operator()(C col) const {
        if (col >= 0) return cached(x + col);
        const C place = ~col;
        return place < n_shared ? shared[place] : cached(popular + place);
    }
};

// stores the rows without entries: thread `from` of `n_threads`
template <class A, class Y, class I>
__device__ void empty_rows(const Cvr<A, I>& m, int64 from, int64 n_threads, Y* y, Y alpha, Y beta, int update) {
    for (int64 i = from; i < m.n_empty; i += n_threads) store(y + m.empty_row[i], Y{}, alpha, beta, update);
}

// What becomes of a row that is cut: its first chunk stores its part in y, the others leave theirs in `carry`, and the last of
// them to finish adds these up, in the order of the chunks.
template <class Y, class I>
struct Cuts {
    const I* row;  // (n_cut,)
    const int64* ptr;  // (n_cut, 2): its chunks but for the first
    const int* of_chunk;  // (n_chunks + 1,) the cut row whose part is this chunk's carry, or -1
    uint32* arrived;  // (n_cut,) chunks that have finished, 0 before and after
    Y* carry;  // (n_chunks,)

    // all lanes of the warp must call it, after the chunk's last store
    __device__ void finish(int64 chunk, Y* y) const {
        const int earlier = of_chunk[chunk], later = of_chunk[chunk + 1];
        if (earlier < 0 && later < 0) return;
        __threadfence();
        __syncwarp();
        if (earlier >= 0) arrive(earlier, y);
        if (later >= 0 && later != earlier) arrive(later, y);
    }

    __device__ void arrive(int cut, Y* y) const {
        const int64 first = ptr[2 * cut], end = ptr[2 * cut + 1];
        bool is_last = false;
        if (lane_id() == 0) {
            is_last = atomicAdd(arrived + cut, 1u) == end - first;
            if (is_last) arrived[cut] = 0;
        }
        if (!__shfl_sync(FULL, is_last, 0)) return;
        __threadfence();
        Y sum{};
        for (int64 chunk = first + lane_id(); chunk < end; chunk += WARP) sum = add(sum, fresh(carry + chunk));
        sum = warp_sum(sum);
        if (lane_id() == 0) y[row[cut]] = add(fresh(y + row[cut]), sum);
    }
};

// `n_for_empty` blocks, evenly among the others, store empty rows instead, so that this overlaps with others' gathers.
template <class A, class Y, class I, int L, int U, bool CUT>
__global__ void cvr_matvec(const Cvr<A, I> m, const Y* __restrict__ x, Y* y, const Cuts<Y, I> cuts, int n_for_empty,
                           Y alpha, Y beta, int update) {
    int64 block = blockIdx.x;
    if (n_for_empty) {
        const int64 before = block * n_for_empty / gridDim.x;  // of the blocks for empty rows
        if ((block + 1) * n_for_empty / gridDim.x > before) {
            empty_rows(m, before * blockDim.x + threadIdx.x, n_for_empty * (int64)blockDim.x, y, alpha, beta, update);
            return;
        }
        block -= before;
    }
    const int64 chunk = (block * blockDim.x + threadIdx.x) / WARP;
    if (chunk >= m.n_chunks) return;
    const I base = m.col_base[chunk];
    const int64 start = m.col_ptr[chunk];
    if (base >= 0)
        chunk_matvec<A, Y, I, L, U>(m, chunk, m.col_narrow + start, Vector<Y>{x + base}, y, cuts.carry, alpha, beta, update);
    else
        chunk_matvec<A, Y, I, L, U>(m, chunk, m.col_wide + start, Vector<Y>{x}, y, cuts.carry, alpha, beta, update);
    if constexpr (CUT) cuts.finish(chunk, y);
}

// cvr_matvec_popular: the same, with the popular entries of x in shared memory
//
// mapping   as above, but few large blocks, whose warps stride over the chunks
// traffic   as above, without the gathers of popular entries from L2; a block loads n_shared of them once
// requires  columns of wide chunks packed by cvr_pack_columns, and `popular` by cvr_pack
// races     as above; shared memory is written before the barrier and read after it
template <class A, class Y, class I, int L, int U, int THREADS, bool CUT>
__global__ __launch_bounds__(THREADS, 1) void cvr_matvec_popular(const Cvr<A, I> m, const Y* __restrict__ x,
                                                                 const Y* __restrict__ popular, int n_shared, Y* y,
                                                                 const Cuts<Y, I> cuts, Y alpha, Y beta, int update) {
    extern __shared__ uint4 memory[];
    Y* shared = reinterpret_cast<Y*>(memory);
    for (int i = threadIdx.x; i < n_shared; i += THREADS) shared[i] = popular[i];
    empty_rows(m, blockIdx.x * (int64)THREADS + threadIdx.x, gridDim.x * (int64)THREADS, y, alpha, beta, update);
    __syncthreads();
    const int64 n_warps = gridDim.x * (int64)(THREADS / WARP);
    for (int64 chunk = warp_id(); chunk < m.n_chunks; chunk += n_warps) {
        const I base = m.col_base[chunk];
        const int64 start = m.col_ptr[chunk];
        if (base >= 0)
            chunk_matvec<A, Y, I, L, U>(m, chunk, m.col_narrow + start, Vector<Y>{x + base}, y, cuts.carry, alpha, beta,
                                        update);
        else
            chunk_matvec<A, Y, I, L, U>(m, chunk, m.col_wide + start, PackedVector<Y>{x, popular, shared, n_shared}, y,
                                        cuts.carry, alpha, beta, update);
        if constexpr (CUT) cuts.finish(chunk, y);
    }
}

// cvr_pack: packed[i] = x[col[i]]
//
// mapping   one thread an entry
// races     none
template <class Y, class I>
__global__ void cvr_pack(const Y* x, const I* col, int n, Y* packed) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) packed[i] = x[col[i]];
}

// cvr_pack_columns: the place of every popular column instead of its number: ~i where place[col] is i + 1
//
// mapping   a grid of threads strides over the slots
// traffic   3 sizeof(I) a slot
// races     none
template <class I>
__global__ void cvr_pack_columns(const I* col, const I* place, int64 n, I* packed) {
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x; i < n; i += stride) {
        const I at = place[col[i]];
        packed[i] = at ? ~(at - 1) : col[i];
    }
}
