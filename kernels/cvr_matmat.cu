// Y = alpha * A @ X + beta * Y for CVR, X (n_cols, k) and Y (n_rows, k) row-major: see matrix.cuh for the groups.

#include "values.cuh"
#include "cvr.cuh"
#include "matrix.cuh"

// The parts of rows that are cut between chunks, of the columns of one tile.
template <class Y>
struct MatrixCuts {
    // (n_chunks + 1, 2) of the row that begins before a chunk and ends in or after it: the first of its chunks and the
    // one after its last; -1 where there is none. Null where no row is cut
    const int* span;
    uint32* arrived;  // (tiles, n_chunks) at the first of its chunks, how many of a row's have finished; all 0 before and after
    Y* part;          // (2 n_chunks, k) a chunk's part of the row that begins before it, and of the one that goes on after it
};

// row `number` of X or Y: its address takes one multiplication where numbers have at most 32 bits
template <class Y, class C>
__device__ Y* row_at(Y* first, C number, uint32 pitch) {
    return (Y*)((char*)first + (sizeof(C) > 4 ? number * pitch : (uint64)(uint32)number * pitch));
}

// A lane's entries of its next U steps, L apart, of which `left` are there; the others stay as they were. LONG: steps
// that are all there have loads without conditions.
template <int L, bool LONG, int U, class To, class From>
__device__ void load_steps(To (&to)[U], const From* from, int left) {
    if (LONG && left >= U) {
#pragma unroll
        for (int u = 0; u < U; ++u) to[u] = cached(from + u * L);
    } else {
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (u < left) to[u] = cached(from + u * L);
    }
}

// The columns of a lane's next steps.
template <class I, int L, bool LONG, int U>
struct NextColumns {
    I (&to)[U];
    const void* from;
    const bool is_narrow;

    __device__ void load(int left) {
        if (is_narrow)
            load_steps<L, LONG>(to, (const uint16*)from, left);
        else
            load_steps<L, LONG>(to, (const I*)from, left);
        from = (const char*)from + U * L * (is_narrow ? sizeof(uint16) : sizeof(I));
    }
};

// The records of a chunk's lanes, as its groups of lanes meet them. Two ways to read them, which change no bit: LONG is for
// rows of A that are long, so that most steps have no record.
template <class I, int G, bool LONG>
struct Records;

// Each warp of the thread block reads WARP steps, for all groups, so that WARP * G are known ahead.
template <class I, int G>
struct Records<I, G, false> {
    struct alignas(8) Step {
        uint32 mask;  // the chunk's lanes with a record
        int before;   // records of the warp's steps before
    };
    struct Shared {
        alignas(16) Step step[G][WARP];
        int total[G];  // records of the warp's steps
    };
    Shared& shared;
    const uint32* mask_of;  // of the thread's step, in what is read next
    const I* wb;            // of the first record of the WARP steps that are met
    const uint32 bit;       // of the group's lane
    int left;               // steps from mask_of on
    int part = G - 1;       // of `shared`, which has the steps that are met

    __device__ Records(Shared& shared, const uint32* mask_of, const I* wb, int n_steps)
        : shared(shared), mask_of(mask_of + threadIdx.x), wb(wb), bit(1u << threadIdx.x / G),
          left(n_steps - (int)threadIdx.x) {}

    // goes on to the WARP steps from `begin` on
    __device__ void advance(int begin) {
        if (begin) wb += shared.total[part];
        part = (part + 1) % G;
        if (part) return;
        const uint32 mask = left > 0 ? stream(mask_of) : 0;
        mask_of += WARP * G;
        left -= WARP * G;
        const int upto = sum_up_to(__popc(mask)), warp = threadIdx.x / WARP;
        __syncthreads();  // the steps before are done with
        shared.step[warp][lane_id()] = {mask, upto - __popc(mask)};
        if (lane_id() == WARP - 1) shared.total[warp] = upto;
        __syncthreads();
    }

    // in which of the next U steps some lane may have a record
    template <int U>
    __device__ uint32 any(int) const {
        return FULL;
    }

    // whether the group's lane has one at a step, and what that names
    __device__ bool meet(int step, I& named) const {
        const Step of = shared.step[part][step];
        const bool found = of.mask & bit;
        if (found) named = cached(wb + of.before + __popc(of.mask & (bit - 1)));
        return found;
    }
};

// Each warp reads the records of its own lanes of the chunk alone, WARP steps at a time. What the next ones name is on its way,
// and so is which lanes have one in those after that: a step each thread.
template <class I, int G>
struct Records<I, G, true> {
    static constexpr int LANES = WARP / G;
    struct Shared {
        I named[G][LANES][WARP];  // by the warp's lanes in its steps, where they have a record
    };
    I (*const named)[WARP];  // those of this warp
    const uint32* mask_of;   // of the thread's step, in those that are loaded next
    const I* wb;             // of the first record that is loaded next
    const int first, own;    // of the warp's lanes, in the chunk; the thread's, in the warp
    int left;                // steps from mask_of on
    uint32 mask, next_ends, next_any;
    I next[LANES];
    uint32 ends, all;  // in which of the WARP steps the thread's lane has a record, and in which any of the warp's

    __device__ Records(Shared& shared, const uint32* mask_of, const I* wb, int n_steps)
        : named(shared.named[threadIdx.x / WARP]), mask_of(mask_of + lane_id()), wb(wb), first(threadIdx.x / WARP * LANES),
          own(lane_id() / G), left(n_steps - lane_id()) {
        load_mask();
        load();
    }
    __device__ void advance(int) {
        ends = next_ends;
        all = next_any;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < LANES; ++i) named[i][lane_id()] = next[i];
        __syncwarp();
        load();
    }
    template <int U>
    __device__ uint32 any(int step) const {
        return all >> step & (uint32)((1ull << U) - 1);
    }
    __device__ bool meet(int step, I& name) const {
        name = named[own][step];
        return ends >> step & 1;
    }

  private:
    __device__ void load_mask() {
        mask = left > 0 ? cached(mask_of) : 0;
        mask_of += WARP;
        left -= WARP;
    }
    __device__ void load() {
        const int upto = sum_up_to(__popc(mask));
        const I* const of_step = wb + (upto - __popc(mask));
        wb += __shfl_sync(FULL, upto, WARP - 1);
        next_any = 0;
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            const uint32 bit = 1u << (first + i), of_lane = __ballot_sync(FULL, (mask & bit) != 0);
            next_any |= of_lane;
            if (i == own) next_ends = of_lane;
            if (mask & bit) next[i] = cached(of_step + __popc(mask & (bit - 1)));
        }
        load_mask();
    }
};

// The lanes of a chunk that add to the entry of tail of this group of G lanes: taken_from has of each whose it adds to
template <int G>
__device__ uint32 takers(const int* taken_from) {
    const int from = taken_from[lane_id()], first = threadIdx.x / WARP * (WARP / G);
    uint32 found = 0;
#pragma unroll 1
    for (int i = 0; i < WARP / G; ++i) {
        const uint32 of = __ballot_sync(FULL, from == first + i);
        if (lane_id() / G == i) found = of;
    }
    return found;
}

// The end of a chunk for the group of lanes that has its lane `group`: `sum` is what that lane adds to its own entry of tail,
// and `others` are the lanes that add to it too, whose sums are in shared memory at `taken`, TILE numbers each.
//
// Then counts the block as arrived at the rows that are cut at the chunk's begin and end. Where it is the last one it adds
// their parts: each of its WARP groups of lanes those of as many chunks apart, then these sums in the order of groups.
// `own` is the thread's place in the rows of shared memory, TILE numbers each, that the first group adds.
template <int UPDATE, int TILE, class Part, class A, class Y, class I>
__device__ void finish(Part& sum, uint32 others, const Y* taken, I tail, const MatrixCuts<Y>& cuts, const Cvr<A, I>& m,
                       int64 chunk, I before, I after, int group, Y* y, int k, int at, Y alpha, Y beta, Y* own, int* is_last) {
    const uint32 pitch = (uint32)k * sizeof(Y);
    Part part = {};
    if (tail >= 0) {
#pragma unroll 1
        for (; others; others &= others - 1) {
            part.load(taken + (__ffs(others) - 1) * TILE, at, k);
            sum.add(part);
        }
        if (tail == before || tail == after)
            sum.store(row_at(cuts.part + at, 2 * chunk + (tail != before), pitch), at, k, alpha, beta, PLAIN);
        else
            sum.store(row_at(y, tail, pitch), at, k, alpha, beta, UPDATE);
    }
    if (before < 0 && after < 0) return;
    __syncthreads();  // all parts of the block are there; shared memory is free
    if (threadIdx.x < 2) {
        __threadfence();  // the barrier and this one fence publish what all threads have stored
        const I row = threadIdx.x ? after : before;
        const int* const span = cuts.span + 2 * (chunk + threadIdx.x);
        const int begin = span[0], n_others = span[1] - begin - 1;
        const bool counts = row >= 0 && (threadIdx.x == 0 || begin == chunk);
        is_last[threadIdx.x] = counts && atomicInc(cuts.arrived + tile_of_block() * m.n_chunks + begin, n_others) == n_others;
        __threadfence();
    }
    __syncthreads();
    const bool last[2] = {is_last[0] != 0, is_last[1] != 0};
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
        if (!(which ? last[1] : last[0])) continue;
        const int begin = cuts.span[2 * (chunk + which)], end = cuts.span[2 * (chunk + which) + 1];
        sum = {};
#pragma unroll 1
        for (int from = begin + group; from < end; from += WARP) {
            part.load(row_at(cuts.part + at, 2 * (int64)from + (from == begin), pitch), at, k);
            sum.add(part);
        }
        __syncthreads();
        sum.store(own, at, k, alpha, beta, PLAIN);
        __syncthreads();
        if (group) continue;
#pragma unroll 1
        for (int i = 1; i < min(end - begin, WARP); ++i) {
            part.load(own + i * TILE, at, k);
            sum.add(part);
        }
        sum.store(row_at(y, which ? after : before, pitch), at, k, alpha, beta, UPDATE);
    }
}

// cvr_matmat: all chunks
//
// mapping   one thread block a chunk and W * G * V columns (tile_of_block() counts these), one group of G lanes each lane of
//           the chunk. LONG: few warps with many registers, so that much of X is under way
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes for each W * G * V columns, and a row of X from L1 or L2;
//           row: sizeof(I) + k sizeof(Y)
// requires  every row has one owner (invariant 5), so Y need not be zeroed; pads follow a lane's last record (invariant
//           6), so that what a lane sums up after it does not matter; a lane adds to its own entry of tail, and to that
//           of one other lane, once each; V divides k; U divides WARP; WARP * G threads
// races     none: rows, parts and empty rows have one owner each. A lane's entries are its own group's up to the last
//           barrier; then what lanes add to another one's is added by that one's group in the order of lanes. The parts of
//           a cut row are added by the last of its chunks to finish, in the order of chunks
//
// A multiprocessor has at least 512 threads, or 1024 unless LONG: half of its threads may have 64 registers each.
template <class A, class Y, class I, int L, int G, int V, int W, int U, bool LONG, int UPDATE>
__global__ __launch_bounds__(WARP* G, LONG || G == 1 ? 16 / G : 32 / G) void cvr_matmat(
    const Cvr<A, I> m, int k, const Y* __restrict__ x, Y* __restrict__ y, const MatrixCuts<Y> cuts, Y alpha, Y beta) {
    constexpr int TILE = W * G * V, TAKEN = WARP * TILE;  // TAKEN: numbers from a lane's entry to what it adds to another's
    typedef Columns<Y, V, W, G * V> Part;
    typedef ::Records<I, G, LONG> Records;
    const Opened<A>& values = m.val.opened();
    const int slot = threadIdx.x / G, member = threadIdx.x % G;
    const int at = (int)min(tile_of_block() * TILE + member * V, (int64)k);
    const uint32 pitch = (uint32)k * sizeof(Y);
#pragma unroll 1
    for (int64 i = blockIdx.x * (int64)WARP + slot; i < m.n_empty; i += gridDim.x * (int64)WARP)
        Part{}.store(y + (int64)m.empty_row[i] * k + at, at, k, alpha, beta, UPDATE);
    __shared__ alignas(16) Y entries[2][WARP][TILE];  // what a lane adds to its own entry of tail, and to another's,
    __shared__ int taken_from[WARP];                  // and whose; -1: nothing
    __shared__ typename Records::Shared shared;
    if (blockIdx.x >= m.n_chunks) return;

    const int64 chunk = blockIdx.x, first = m.step_ptr[chunk];
    const int n_steps = (int)(m.step_ptr[chunk + 1] - first);
    const bool active = L == WARP || slot < L;
    const int own = active ? slot : 0;
    const I base = m.col_base[chunk];
    const bool is_narrow = base >= 0;
    const int64 first_col = m.col_ptr[chunk] + own;
    const void* col = is_narrow ? (const void*)(m.col_narrow + first_col) : (const void*)(m.col_wide + first_col);
    const Stored<A>* val = values.slot + (first * L + own);
    if (is_narrow) x = row_at(x, base, pitch);
    x += LONG && at >= k ? 0 : at;  // LONG: lanes beyond the last column compute too
    y += at;
    I c[U] = {};  // valid ones, also after the last step
    Stored<A> v[U] = {};
    NextColumns<I, L, LONG, U> next = {c, col, is_narrow};
    next.load(n_steps);
    Records records(shared, m.rec_mask + first, m.rec_wb + m.rec_ptr[chunk], n_steps);
    // ahead, as nothing else is there to wait with
    const I before = cuts.span ? m.carry_row[chunk] : I(-1);
    const I after = cuts.span && chunk + 1 < m.n_chunks ? m.carry_row[chunk + 1] : I(-1);
    const I tail = active ? m.tail[chunk * L + slot] : I(-1);
    Y* const entry = entries[0][slot] + member * V;
    Part sum = {};
    sum.store(entry, at, k, alpha, beta, PLAIN);
    if (member == 0) taken_from[slot] = -1;

#pragma unroll 1
    for (int begin = 0; begin < n_steps; begin += U) {
        const int step = begin % WARP, left = n_steps - begin;
        Part of_x[U];
#pragma unroll
        for (int u = 0; u < U; ++u) of_x[u].template load<LONG>(row_at(x, c[u], pitch), at, k);
        next.load(left - U);  // ahead, so that the next rows of X do not wait for them
        load_steps<L, LONG>(v, val, left);
        val += U * L;
        if (step == 0) records.advance(begin);
        const uint32 any = records.template any<U>(step);
        if (!any) {
#pragma unroll
            for (int u = 0; u < U; ++u) sum.add_product(values.template decoded<Y>(v[u]), of_x[u]);
            continue;
        }
        // Without a branch, on whose other side the first product would already wait for X: so all loads of these steps
        // are under way before it
        bool ends[U];
        I row[U] = {};
#pragma unroll
        for (int u = 0; u < U; ++u) ends[u] = records.meet(step + u, row[u]);
#pragma unroll
        for (int u = 0; u < U; ++u) {
            sum.add_product(values.template decoded<Y>(v[u]), of_x[u]);
            if (!(LONG ? any >> u & 1 : ends[u])) continue;
            if (ends[u] && UPDATE != PLAIN && row[u] >= 0 && row[u] != before) {
                sum.store(row_at(y, row[u], pitch), at, k, alpha, beta, UPDATE);
            } else if (ends[u]) {
                Y* to = row[u] != before ? row_at(y, row[u], pitch) : row_at(cuts.part + at, 2 * chunk, pitch);
                if (row[u] < 0) {
                    const bool takes = ~row[u] != slot;
                    to = entry + (takes ? TAKEN : 0);
                    if (takes && member == 0) taken_from[slot] = (int)~row[u];
                }
                sum.store(to, at, k, alpha, beta, PLAIN);
            }
            sum.clear_if(ends[u]);
        }
    }
    __syncthreads();
    if (tail >= 0) sum.load(entry, at, k);
    finish<UPDATE, TILE>(sum, takers<G>(taken_from), entries[1][0] + member * V, tail, cuts, m, chunk, before, after, slot, y, k,
                         at, alpha, beta, entry, taken_from);
}
