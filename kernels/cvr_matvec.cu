// y = alpha * A @ x + beta * y for CVR.

#include "cvr.cuh"

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
    __device__ void finish(int earlier, int later, Y* y) const {
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

// A lane's own entry of tail with what others have stolen from it: their parts are added by pairs, in an order that depends on
// the tables alone, and then to the entry. `victim` is the lane that this one has stolen from, or -1.
template <class Y>
__device__ Y with_stolen(Y own, Y stolen, int victim) {
    const unsigned thieves = __ballot_sync(FULL, victim >= 0);
    if (!thieves) return own;
    const int lane = lane_id();
    unsigned same = thieves, mine = thieves;  // thieves with this lane's victim; those whose victim this lane is
#pragma unroll
    for (int bit = 0; bit < 5; ++bit) {
        const unsigned set = __ballot_sync(FULL, victim >> bit & 1);
        same &= victim >> bit & 1 ? set : ~set;
        mine &= lane >> bit & 1 ? set : ~set;
    }
    unsigned above = victim >= 0 ? same & ~1u << lane : 0;
    int rank = __popc(same & ((1u << lane) - 1));
    while (__any_sync(FULL, above)) {  // each with the next one that still has a part; then every second one is done
        const int next = __ffs(above) - 1;
        const Y part = shuffle(stolen, next < 0 ? lane : next);
        if (next >= 0) stolen = add(stolen, part);
        above &= __ballot_sync(FULL, !(rank & 1));
        rank >>= 1;
    }
    const Y parts = shuffle(stolen, mine ? __ffs(mine) - 1 : lane);
    return mine ? add(own, parts) : own;
}

// What a lane has to know of its chunk, all of it loaded at once.
template <class A, class Y, class I, int L, bool CUT>
struct Chunk {
    int64 number, first, col_start, wb_start;
    int n_steps;
    I base, tail, carry_row;
    int cuts[2];  // the cut rows that it has a share of, as in Cuts::of_chunk

    __device__ Chunk(const Cvr<A, I>& m, const Cuts<Y, I>& cut, int64 chunk) : number(chunk) {
        const int lane = lane_id();
        first = m.step_ptr[chunk];
        n_steps = (int)(m.step_ptr[chunk + 1] - first);
        base = m.col_base[chunk];
        col_start = m.col_ptr[chunk];
        wb_start = m.rec_ptr[chunk];
        tail = L == WARP || lane < L ? m.tail[chunk * L + lane] : I(-1);
        carry_row = CUT ? m.carry_row[chunk] : I(-1);
        for (int i = 0; i < 2; ++i) cuts[i] = CUT ? cut.of_chunk[chunk + i] : -1;
    }
};

// cvr_matvec: all chunks
//
// mapping   one warp a chunk, one thread a lane (L lanes; threads beyond them idle); one thread an empty row
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes, and x; row: sizeof(I) + sizeof(Y)
// requires  every row has one owner (invariant 5), so each y is stored once and y need not be zeroed;
//           pads follow a lane's last record (invariant 6), so their products are never stored
// races     none: rows, carries and empty rows have one owner each; parts of a stolen row are added in an order of their own
//
// U steps are loaded before the first is used, and the targets of their records, so that no store waits for them. A warp's
// instructions are what bounds matrices of short or uneven rows: steps without records are multiplied and no more.
//
// `x` gives the entry of x for a column as stored.
template <class A, class Y, class I, int L, int UPDATE, bool CUT, class C, class X>
struct Lane {  // its way through the chunk
    const Chunk<A, Y, I, L, CUT>& chunk;
    const X& x;
    Y* const y;
    Y* const carry;
    const Y alpha, beta;
    const C* col;
    const A* val;
    const uint32* mask;
    const I* wb;
    Y sum{}, own{}, stolen{};  // the running sum; the lane's own entry of tail; what it adds to its victim's
    int victim = -1;
    unsigned n_records = 0;  // met so far

    __device__ void put(I row, Y value) const {
        if (CUT && row == chunk.carry_row)
            carry[chunk.number] = scaled(value, alpha, UPDATE);
        else
            store(y + row, value, alpha, beta, UPDATE);
    }

    // the next `count` of at least W steps
    template <int W>
    __device__ void multiply(int count) {
        const int lane = lane_id();
        const unsigned below = (1u << lane) - 1;
        C c[W];
        A v[W];
        Y xs[W];
#pragma unroll
        for (int u = 0; u < W; ++u) c[u] = stream(col + u * L);
#pragma unroll
        for (int u = 0; u < W; ++u) v[u] = stream(val + u * L);
        const unsigned mine = lane < count ? stream(mask + lane) : 0;
        __syncwarp();
#pragma unroll
        for (int u = 0; u < W; ++u) xs[u] = x(c[u]);
        if (!__any_sync(FULL, mine != 0)) {
#pragma unroll
            for (int u = 0; u < W; ++u)
                if (u < count) sum = mac(Widen<Y, A>::from(v[u]), xs[u], sum);
        } else {
            I target[W];
            unsigned ends = 0;
#pragma unroll
            for (int u = 0; u < W; ++u) {
                const unsigned records = __shfl_sync(FULL, mine, u), end = records >> lane & 1;
                target[u] = wb[end ? n_records + __popc(records & below) : 0];  // else any that is there
                ends |= end << u;
                n_records += __popc(records);
            }
            __syncwarp();
#pragma unroll
            for (int u = 0; u < W; ++u) {
                if (u < count) sum = mac(Widen<Y, A>::from(v[u]), xs[u], sum);
                if (ends >> u & 1) {
                    const I to = target[u];
                    if (to >= 0) {
                        put(to, sum);
                    } else if (~to == lane) {
                        own = sum;
                    } else {
                        stolen = sum;
                        victim = (int)~to;
                    }
                    sum = Y{};
                }
            }
        }
        col += count * L;
        val += count * L;
        mask += count;
    }
};

template <class A, class Y, class I, int L, int U, int UPDATE, bool CUT, class C, class X>
__device__ void chunk_matvec(const Cvr<A, I>& m, const Chunk<A, Y, I, L, CUT>& chunk, const C* col, const X& x, Y* y, Y* carry,
                             Y alpha, Y beta) {
    const int slot = L == WARP || lane_id() < L ? lane_id() : 0;
    const I* wb = m.rec_wb + chunk.wb_start;
    asm("" : "+l"(wb));  // one pointer, not a sum of two in each step
    Lane<A, Y, I, L, UPDATE, CUT, C, X> lane{
        chunk, x, y, carry, alpha, beta, col + slot, m.val + chunk.first * L + slot, m.rec_mask + chunk.first, wb};
    int left = chunk.n_steps;
    if (left >= U) {  // the first time so many that all others have U
        int count = (left - 1) % U + 1;
#pragma unroll 1
        for (; left; left -= count, count = U) lane.template multiply<U>(count);
    } else {
#pragma unroll 1
        for (; left; --left) lane.template multiply<1>(1);
    }
    const Y total = with_stolen(lane.own, lane.stolen, lane.victim);
    if (chunk.tail >= 0) lane.put(chunk.tail, total);
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

// x with its popular entries packed, in shared memory: column ~i is entry i of these
template <class Y>
struct PackedVector {
    const Y* x;
    const Y* shared;
    template <class C>
    __device__ Y operator()(C col) const {
        return col >= 0 ? cached(x + col) : shared[~col];
    }
};

// all of x in shared memory
template <class Y>
struct SharedVector {
    const Y* shared;
    template <class C>
    __device__ Y operator()(C col) const {
        return shared[col];
    }
};

// stores the rows without entries: thread `from` of `n_threads`
template <class A, class Y, class I>
__device__ void empty_rows(const Cvr<A, I>& m, int64 from, int64 n_threads, Y* y, Y alpha, Y beta, int update) {
    for (int64 i = from; i < m.n_empty; i += n_threads) store(y + m.empty_row[i], Y{}, alpha, beta, update);
}

// `n_for_empty` blocks, evenly among the others, store empty rows instead, so that this overlaps with others' gathers.
template <class A, class Y, class I, int L, int U, int UPDATE, bool CUT>
__global__ void cvr_matvec(const Cvr<A, I> m, const Y* __restrict__ x, Y* y, const Cuts<Y, I> cuts, int n_for_empty,
                           Y alpha, Y beta) {
    int64 block = blockIdx.x;
    if (n_for_empty) {
        const int64 before = block * n_for_empty / gridDim.x;  // of the blocks for empty rows
        if ((block + 1) * n_for_empty / gridDim.x > before) {
            empty_rows(m, before * blockDim.x + threadIdx.x, n_for_empty * (int64)blockDim.x, y, alpha, beta, UPDATE);
            return;
        }
        block -= before;
    }
    const int64 chunk = (block * blockDim.x + threadIdx.x) / WARP;
    if (chunk >= m.n_chunks) return;
    const Chunk<A, Y, I, L, CUT> c(m, cuts, chunk);
    if (c.base >= 0)
        chunk_matvec<A, Y, I, L, U, UPDATE, CUT>(m, c, m.col_narrow + c.col_start, Vector<Y>{x + c.base}, y, cuts.carry, alpha,
                                                 beta);
    else
        chunk_matvec<A, Y, I, L, U, UPDATE, CUT>(m, c, m.col_wide + c.col_start, Vector<Y>{x}, y, cuts.carry, alpha, beta);
    if constexpr (CUT) cuts.finish(c.cuts[0], c.cuts[1], y);
}

// cvr_matvec_shared: the same, with entries of x in shared memory: the popular ones, or WHOLE: all of them
//
// mapping   one large block a multiprocessor; each has its share of the chunks, its warps take one after the other
// traffic   as above, without the gathers of shared entries from L2; a block loads n_shared of them once
// requires  WHOLE: `packed` is x. Else: all columns wide and packed by cvr_pack_columns, `packed` made by cvr_pack
// races     as above; which warp takes a chunk does not show. Shared memory is written before the barrier and read after it
template <class A, class Y, class I, int L, int U, int UPDATE, int THREADS, bool WHOLE, bool CUT>
__global__ __launch_bounds__(THREADS, 1) void cvr_matvec_shared(const Cvr<A, I> m, const Y* __restrict__ x,
                                                                const Y* __restrict__ packed, int n_shared, Y* y,
                                                                const Cuts<Y, I> cuts, Y alpha, Y beta) {
    extern __shared__ uint4 memory[];
    __shared__ int taken;
    Y* shared = reinterpret_cast<Y*>(memory);
    if (threadIdx.x == 0) taken = THREADS / WARP;
#pragma unroll 8
    for (int i = threadIdx.x; i < n_shared; i += THREADS) shared[i] = packed[i];
    empty_rows(m, blockIdx.x * (int64)THREADS + threadIdx.x, gridDim.x * (int64)THREADS, y, alpha, beta, UPDATE);
    __syncthreads();
    const int64 first = m.n_chunks * blockIdx.x / gridDim.x;
    const int count = (int)(m.n_chunks * (blockIdx.x + 1) / gridDim.x - first);
    for (int mine = threadIdx.x / WARP; mine < count;) {
        const Chunk<A, Y, I, L, CUT> c(m, cuts, first + mine);
        if constexpr (!WHOLE)
            chunk_matvec<A, Y, I, L, U, UPDATE, CUT>(m, c, m.col_wide + c.first * L, PackedVector<Y>{x, shared}, y, cuts.carry,
                                                     alpha, beta);
        else if (c.base >= 0)
            chunk_matvec<A, Y, I, L, U, UPDATE, CUT>(m, c, m.col_narrow + c.col_start, SharedVector<Y>{shared + c.base}, y,
                                                     cuts.carry, alpha, beta);
        else
            chunk_matvec<A, Y, I, L, U, UPDATE, CUT>(m, c, m.col_wide + c.col_start, SharedVector<Y>{shared}, y, cuts.carry,
                                                     alpha, beta);
        if constexpr (CUT) cuts.finish(c.cuts[0], c.cuts[1], y);
        if (lane_id() == 0) mine = atomicAdd(&taken, 1);
        mine = __shfl_sync(FULL, mine, 0);
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

// The columns of CVR's tables, whatever its values.
template <class I>
struct Columns {
    const int64* step_ptr;
    const I* col_base;
    const int64* col_ptr;
    const uint16* col_narrow;
    const I* col_wide;
    int64 n_chunks, n_lanes;
};

// calls f(slot, column) for every slot of a chunk, the warp's lanes side by side
template <class I, class F>
__device__ void each_column(const Columns<I>& m, int64 chunk, F f) {
    const I base = m.col_base[chunk];
    const int64 start = m.col_ptr[chunk], first = m.step_ptr[chunk] * m.n_lanes, end = m.step_ptr[chunk + 1] * m.n_lanes;
    for (int64 slot = first + lane_id(); slot < end; slot += WARP)
        f(slot, base >= 0 ? (I)(base + m.col_narrow[start + slot - first]) : m.col_wide[start + slot - first]);
}

// cvr_count_columns: hits[col] += 1 for every slot of each `every`-th chunk
//
// mapping   one warp a chunk
// races     integer atomics
template <class I>
__global__ void cvr_count_columns(const Columns<I> m, int64 every, uint32* hits) {
    const int64 chunk = warp_id() * every;
    if (chunk < m.n_chunks) each_column(m, chunk, [&](int64, I col) { atomicAdd(hits + col, 1u); });
}

// cvr_pack_columns: all columns wide, and the place of every popular one instead of its number: ~i where place[col] is i + 1
//
// mapping   one warp a chunk
// traffic   2 or sizeof(I), and 2 sizeof(I) a slot
// races     none
template <class I>
__global__ void cvr_pack_columns(const Columns<I> m, const I* place, I* packed) {
    if (warp_id() < m.n_chunks)
        each_column(m, warp_id(), [&](int64 slot, I col) {
            const I at = place[col];
            packed[slot] = at ? ~(at - 1) : col;
        });
}
