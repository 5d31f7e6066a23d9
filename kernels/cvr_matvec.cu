// y = alpha * A @ x + beta * y for CVR.

#include "cvr.cuh"

// A row that is cut between chunks: each chunk publishes its partial sum; the last chunk to arrive adds them, in chunk
// order. Each 32-bit word of a part is stored in one 64-bit word with a mark that says that it is there. So a chunk
// need not wait until its part is visible before it counts as arrived: the one that adds polls the marks.
template <class Y>
struct Cuts {
    const int* span;  // (n_chunks + 1, 2) of the row that begins before a chunk and ends in or after it: the first of its
                      // chunks and the one after its last; -1 where there is none
    uint32* arrived;  // (n_chunks,) at the first of its chunks, how many of a row's have finished; all 0 before and after
    uint64* part;  // (2 n_chunks, WORDS) a chunk's part of the row that begins before it, and of the one that goes on after it

    static constexpr int WORDS = (sizeof(Y) + 3) / 4;
    static constexpr int AT_ONCE = WORDS < 4 ? 4 / WORDS : 1;  // parts that a lane asks for, where it has registers for them
    static constexpr uint64 MARK = 1ull << 32;
    union Bits {
        Y value;
        uint32 word[WORDS];
    };
    struct Part {
        uint64 word[WORDS];
        __device__ void ask(const uint64* at) {
#pragma unroll
            for (int i = 0; i < WORDS; ++i) asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(word[i]) : "l"(at + i) : "memory");
        }
        __device__ bool is_there() const {
            uint64 marks = MARK;
#pragma unroll
            for (int i = 0; i < WORDS; ++i) marks &= word[i];
            return marks;
        }
        __device__ Y value() const {
            Bits bits;
#pragma unroll
            for (int i = 0; i < WORDS; ++i) bits.word[i] = (uint32)word[i];
            return bits.value;
        }
    };

    __device__ void leave(int64 slot, Y value) const {
        Bits bits;
        bits.word[WORDS - 1] = 0;
        bits.value = value;
#pragma unroll
        for (int i = 0; i < WORDS; ++i)
            asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(part + slot * WORDS + i), "l"(MARK | bits.word[i]) : "memory");
    }

    // this lane's share of the parts of the row that chunks first to end - 1 hold, U of them asked for at once; no mark
    // is left
    template <int U>
    __device__ Y share(int64 first, int64 end) const {
        Y sum{};
        for (int64 from = first + lane_id(); from < end; from += U * WARP) {
            Part parts[U];
#pragma unroll
            for (int u = 0; u < U; ++u)
                if (from + u * WARP < end) parts[u].ask(place(first, from + u * WARP));
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (from + u * WARP >= end) break;
                uint64* const at = place(first, from + u * WARP);
                while (!parts[u].is_there()) parts[u].ask(at);
#pragma unroll
                for (int i = 0; i < WORDS; ++i) at[i] = 0;
                sum = add(sum, parts[u].value());
            }
        }
        return sum;
    }

    // where a chunk leaves its part of the row that begins in chunk `first`
    __device__ uint64* place(int64 first, int64 chunk) const { return part + (2 * chunk + (chunk == first)) * WORDS; }

    // all lanes of the warp must call it, after the chunk's last `leave`, the first four with the words of span[chunk]
    // and span[chunk + 1], the first two with the rows that these are of
    template <int U, class I>
    __device__ void finish(int64 chunk, int spans, I rows, Y* y, Y alpha, Y beta, int update) const {
        const int lane = lane_id();
        const int first = shuffle(spans, 2 * lane), others = shuffle(spans, 2 * lane + 1) - first - 1;
        const bool has_share = lane == 0 ? first >= 0 : lane == 1 && first == chunk;
        bool is_last = false;
        __syncwarp();
        if (has_share) is_last = atomicInc(arrived + first, others) == others;  // the last one makes it 0 again
        for (unsigned done = __ballot_sync(FULL, is_last); done; done &= done - 1) {
            const int which = __ffs(done) - 1;
            const int64 begin = shuffle(first, which), end = begin + shuffle(others, which) + 1;
            const Y sum = warp_sum(share<U>(begin, end));
            if (lane == which) store(y + rows, sum, alpha, beta, update);
        }
    }
};

// A lane's sums after the last step: that for its own entry of tail, and the part for the lane that it has stolen from.
template <class Y>
struct LaneSums {
    Y own{}, stolen{};
    int victim = -1;  // whom it has stolen from, or -1
};

// The sum for a lane's own entry of tail, with the parts that other lanes have stolen. These are added pairwise, in an
// order that depends on the tables alone, and then to the entry.
template <class Y>
__device__ Y with_stolen(LaneSums<Y> sums) {
    auto [own, stolen, victim] = sums;
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

// The tables' entries of a chunk, as its lanes need them. All are loaded before the first is used.
template <class A, class Y, class I, int L, bool CUT>
struct Chunk {
    int64 number, first, col_start, wb_start;
    int n_steps;
    I base, tail;
    I rows;  // the first two lanes': the row that begins before the chunk and the one that goes on after it; else -1
    int spans;  // the first four lanes': as Cuts::finish wants them

    __device__ Chunk(const Cvr<A, I>& m, const Cuts<Y>& cuts, int64 chunk) : number(chunk) {
        const int lane = lane_id();
        first = m.step_ptr[chunk];
        n_steps = (int)(m.step_ptr[chunk + 1] - first);
        base = m.col_base[chunk];
        col_start = m.col_ptr[chunk];
        wb_start = m.rec_ptr[chunk];
        tail = L == WARP || lane < L ? m.tail[chunk * L + lane] : I(-1);
        rows = CUT && lane < 2 && chunk + lane < m.n_chunks ? m.carry_row[chunk + lane] : I(-1);
        spans = CUT && lane < 4 ? cuts.span[2 * chunk + lane] : -1;
    }

    // stores what is left after the last step
    template <int U>
    __device__ void finish(const LaneSums<Y>& sums, Y* y, const Cuts<Y>& cuts, Y alpha, Y beta, int update) const {
        const Y total = with_stolen(sums);
        const I before = CUT ? shuffle(rows, 0) : I(-1), after = CUT ? shuffle(rows, 1) : I(-1);
        if (tail >= 0) {
            if (CUT && tail == before)
                cuts.leave(2 * number, total);
            else if (CUT && tail == after)
                cuts.leave(2 * number + 1, total);
            else
                store(y + tail, total, alpha, beta, update);
        }
        if (CUT && (before >= 0 || after >= 0)) cuts.template finish<U>(number, spans, rows, y, alpha, beta, update);
    }
};

// cvr_matvec: all chunks
//
// mapping   one warp a chunk, one thread a lane (L lanes; threads beyond them idle); one thread an empty row
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes, and x; row: sizeof(I) + sizeof(Y)
// requires  every row has one owner (invariant 5), so each y is stored once and y need not be zeroed;
//           pads follow a lane's last record (invariant 6), so their products are never stored
// races     none: rows, parts of cut rows and empty rows have one owner each; who adds parts up waits for their marks; parts of a
//           stolen row are added in an order of their own
//
// U steps are loaded before the first is used, with the targets of their records, so that no store waits for a load.
// Meanwhile the columns of the next U steps are loaded. Matrices of short or uneven rows are bound by instructions, so
// groups of steps without records have a loop of their own, which only multiplies.
//
// `x` gives the entry of x for a column as stored.
template <class A, class Y, class I, int L, int UPDATE, bool CUT, class C, class X>
struct Lane {  // the state of a lane while it walks through its chunk
    const Chunk<A, Y, I, L, CUT>& chunk;
    const X& x;
    Y* const y;
    const Cuts<Y>& cuts;
    const Y alpha, beta;
    const C* col;
    const A* val;
    const uint32* mask;
    const I* wb;
    Y sum{};  // the running one
    LaneSums<Y> sums;
    unsigned n_records = 0;  // met so far

    // the columns and records of W steps
    template <int W>
    struct Group {
        C c[W];
        unsigned records;  // lane u's: the mask of step u
    };

    // those of the next W steps; records of the first `count` only
    template <int W>
    __device__ void load(Group<W>& group, int count) const {
#pragma unroll
        for (int u = 0; u < W; ++u) group.c[u] = stream(col + u * L);
        group.records = lane_id() < count ? stream(mask + lane_id()) : 0;
    }

    template <int W>
    __device__ void load_values(A (&v)[W]) const {
#pragma unroll
        for (int u = 0; u < W; ++u) v[u] = stream(val + u * L);
    }

    // Multiplies the next `left` steps, at least W: W at a time, after a first group of the remainder. AHEAD: the next
    // group's columns are loaded while this one waits for x.
    template <int W, bool AHEAD>
    __device__ void multiply(int left) {
        const int lane = lane_id();
        const unsigned below = (1u << lane) - 1;
        int count = (left - 1) % W + 1;
        Group<W> now, next;
        if (AHEAD) load(now, count);
#pragma unroll 1
        for (;; count = W) {
            A v[W];
            Y xs[W];
            if (!AHEAD) {
                load(now, count);
                load_values(v);
            }
            __syncwarp();  // this and others keep loads where they stand
#pragma unroll
            for (int u = 0; u < W; ++u) xs[u] = x(now.c[u]);
            if (AHEAD) load_values(v);
            col += count * L;
            val += count * L;
            mask += count;
            left -= count;
            if (AHEAD && left) load(next, W);
            __syncwarp();
            if (!__any_sync(FULL, now.records != 0)) {
#pragma unroll
                for (int u = 0; u < W; ++u)
                    if (u < count) sum = mac(Widen<Y, A>::from(v[u]), xs[u], sum);
            } else {
                I target[W];
                unsigned ends = 0;
#pragma unroll
                for (int u = 0; u < W; ++u) {
                    const unsigned records = __shfl_sync(FULL, now.records, u), end = records >> lane & 1;
                    target[u] = wb[end ? n_records + __popc(records & below) : 0];  // else any that is there
                    ends |= end << u;
                    n_records += __popc(records);
                }
                __syncwarp();
#pragma unroll
                for (int u = 0; u < W; ++u) {
                    if (u < count) sum = mac(Widen<Y, A>::from(v[u]), xs[u], sum);
                    if (ends >> u & 1) end_row(target[u]);
                }
            }
            if (!left) break;
            if (AHEAD) now = next;
        }
    }

    // the running sum is complete
    __device__ void end_row(I to) {
        if (CUT && to >= 0 && to == chunk.rows) {  // a chunk's first row is its first lane's
            cuts.leave(2 * chunk.number, sum);
        } else if (to >= 0) {
            store(y + to, sum, alpha, beta, UPDATE);
        } else if (~to == lane_id()) {
            sums.own = sum;
        } else {
            sums.stolen = sum;
            sums.victim = (int)~to;
        }
        sum = Y{};
    }
};

template <class A, class Y, class I, int L, int U, bool AHEAD, int UPDATE, bool CUT, class C, class X>
__device__ LaneSums<Y> chunk_matvec(const Cvr<A, I>& m, const Chunk<A, Y, I, L, CUT>& chunk, const C* col, const X& x, Y* y,
                                    const Cuts<Y>& cuts, Y alpha, Y beta) {
    const int slot = L == WARP || lane_id() < L ? lane_id() : 0;
    const I* wb = m.rec_wb + chunk.wb_start;
    asm("" : "+l"(wb));  // one pointer, not a sum of two in each step
    Lane<A, Y, I, L, UPDATE, CUT, C, X> lane{
        chunk, x, y, cuts, alpha, beta, col + slot, m.val + chunk.first * L + slot, m.rec_mask + chunk.first, wb};
    if (chunk.n_steps >= U)
        lane.template multiply<U, AHEAD>(chunk.n_steps);
    else
        lane.template multiply<1, AHEAD>(chunk.n_steps);
    return lane.sums;
}

// x in global memory
template <class Y>
struct GlobalX {
    const Y* x;
    template <class C>
    __device__ Y operator()(C col) const {
        return cached(x + col);
    }
};

// x in global memory, but for its popular entries, which are in shared memory: column ~i is entry i of these
template <class Y>
struct PackedX {
    const Y* x;
    const Y* shared;
    template <class C>
    __device__ Y operator()(C col) const {
        return col >= 0 ? cached(x + col) : shared[~col];
    }
};

// all of x in shared memory
template <class Y>
struct SharedX {
    const Y* shared;
    template <class C>
    __device__ Y operator()(C col) const {
        return shared[col];
    }
};

// stores the rows without entries: thread `from` of `n_threads`
template <class A, class Y, class I>
__device__ void empty_rows(const Cvr<A, I>& m, int64 from, int64 n_threads, Y* y, Y alpha, Y beta, int update) {
    constexpr int U = 8;  // rows that are asked for before the first is stored
    for (int64 i = from; i < m.n_empty; i += U * n_threads) {
        I row[U];
#pragma unroll
        for (int u = 0; u < U; ++u) row[u] = i + u * n_threads < m.n_empty ? stream(m.empty_row + i + u * n_threads) : I(-1);
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (row[u] >= 0) store(y + row[u], Y{}, alpha, beta, update);
    }
}

// `n_for_empty` blocks, spread evenly, store empty rows instead, so that these stores overlap with the others' gathers.
template <class A, class Y, class I, int L, int U, int UPDATE, bool CUT>
__global__ void cvr_matvec(const Cvr<A, I> m, const Y* __restrict__ x, Y* y, const Cuts<Y> cuts, int n_for_empty,
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
    const auto sums = c.base >= 0
        ? chunk_matvec<A, Y, I, L, U, true, UPDATE, CUT>(m, c, m.col_narrow + c.col_start, GlobalX<Y>{x + c.base}, y, cuts, alpha,
                                                         beta)
        : chunk_matvec<A, Y, I, L, U, true, UPDATE, CUT>(m, c, m.col_wide + c.col_start, GlobalX<Y>{x}, y, cuts, alpha, beta);
    c.template finish<Cuts<Y>::AT_ONCE>(sums, y, cuts, alpha, beta, UPDATE);
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
                                                                const Cuts<Y> cuts, Y alpha, Y beta) {
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
        LaneSums<Y> sums;
        if constexpr (!WHOLE)  // as many steps under way as in hand, U together
            sums = chunk_matvec<A, Y, I, L, (U > 1 ? U / 2 : 1), true, UPDATE, CUT>(
                m, c, m.col_wide + c.first * L, PackedX<Y>{x, shared}, y, cuts, alpha, beta);
        else if (c.base >= 0)  // x is there at once: nothing need be under way meanwhile
            sums = chunk_matvec<A, Y, I, L, U, false, UPDATE, CUT>(m, c, m.col_narrow + c.col_start,
                                                                   SharedX<Y>{shared + c.base}, y, cuts, alpha, beta);
        else
            sums = chunk_matvec<A, Y, I, L, U, false, UPDATE, CUT>(m, c, m.col_wide + c.col_start, SharedX<Y>{shared}, y,
                                                                   cuts, alpha, beta);
        c.template finish<WHOLE ? 1 : Cuts<Y>::AT_ONCE>(sums, y, cuts, alpha, beta, UPDATE);
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

// cvr_pack_columns: all columns wide, and the place of every popular one instead of its number: ~i where place[col] is
// i + 1
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
