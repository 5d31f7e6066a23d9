// What the kernels of A @ X for CVR share: addresses of rows, and rows that are cut between chunks.

// The parts of rows that are cut between chunks, of the columns of one tile.
template <class Y>
struct MatrixCuts {
    // (n_chunks + 1, 2) of the row that begins before a chunk and ends in or after it: the first of its chunks and the
    // one after its last; -1 where there is none. Null where no row is cut
    const int* span;
    uint32* arrived;  // (tiles, n_chunks) at the first of its chunks, how many of a row's have finished; all 0 before and after
    Y* part;          // (2 n_chunks, k) a chunk's part of the row that begins before it, and of the one that goes on after it
};

template <class Y>
struct Bytes {
    typedef char Type;
};
template <class Y>
struct Bytes<const Y> {
    typedef const char Type;
};

// row `number` of X or Y: its address takes one multiplication where numbers have at most 32 bits
template <class Y, class C>
__device__ Y* row_at(Y* first, C number, uint32 pitch) {
    typedef typename Bytes<Y>::Type Byte;
    Byte* const from = reinterpret_cast<Byte*>(first);
    if constexpr (sizeof(C) > 4) return reinterpret_cast<Y*>(from + number * pitch);
    return reinterpret_cast<Y*>(from + (uint64)(uint32)number * pitch);
}

// Of steps, one each thread, where `mask` are the lanes with a record: how many records the warp's have up to the thread's.
__device__ inline int records_up_to(uint32 mask) {
    int upto = __popc(mask);
#pragma unroll
    for (int apart = 1; apart < WARP; apart *= 2) {
        const int other = __shfl_up_sync(FULL, upto, apart);
        if (lane_id() >= apart) upto += other;
    }
    return upto;
}

// A lane's entries of its next U steps, L apart, of which `left` are there; the others stay as they were. IN_FULL: whether steps
// that are all there have loads without conditions.
template <int L, bool IN_FULL, int U, class To, class From>
__device__ void load_steps(To (&to)[U], const From* from, int left) {
    if (IN_FULL && left >= U) {
#pragma unroll
        for (int u = 0; u < U; ++u) to[u] = cached(from + u * L);
    } else {
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (u < left) to[u] = cached(from + u * L);
    }
}

// The columns of a lane's next steps.
template <class I, int L, bool IN_FULL, int U>
struct NextColumns {
    I (&to)[U];
    const void* from;
    const bool is_narrow;

    __device__ void load(int left) {
        if (is_narrow)
            load_steps<L, IN_FULL>(to, (const uint16*)from, left);
        else
            load_steps<L, IN_FULL>(to, (const I*)from, left);
        from = (const char*)from + U * L * (is_narrow ? sizeof(uint16) : sizeof(I));
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
// their parts: each of its GROUPS groups of lanes those of as many chunks apart, then these sums in the order of groups.
// `own` is the thread's place in the rows of shared memory, TILE numbers each, that the first group adds.
template <int UPDATE, int TILE, int GROUPS, class Part, class A, class Y, class I>
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
        for (int from = begin + group; from < end; from += GROUPS) {
            part.load(row_at(cuts.part + at, 2 * (int64)from + (from == begin), pitch), at, k);
            sum.add(part);
        }
        __syncthreads();
        sum.store(own, at, k, alpha, beta, PLAIN);
        __syncthreads();
        if (group) continue;
#pragma unroll 1
        for (int i = 1; i < min(end - begin, GROUPS); ++i) {
            part.load(own + i * TILE, at, k);
            sum.add(part);
        }
        sum.store(row_at(y, which ? after : before, pitch), at, k, alpha, beta, UPDATE);
    }
}
