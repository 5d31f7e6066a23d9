// The sums of a chunk's rows in CVR: what every kernel that multiplies a vector by it shares.

// A row that is cut between chunks: each chunk publishes its partial sum; the last chunk to arrive adds them, in chunk
// order. Each 32-bit word of a part is stored in one 64-bit word with a mark that says that it is there. So a chunk
// need not wait until its part is visible before it counts as arrived: the one that adds polls the marks.
template <class Y>
struct Cuts {
    // (n_chunks + 1, 2) of the row that begins before a chunk and ends in or after it: the first of its chunks and the one
    // after its last; -1 where there is none
    const int* span;
    // (n_chunks,) at the first of its chunks, how many of a row's have finished; all 0 before and after
    uint32* arrived;
    // (2 n_chunks, WORDS) a chunk's part of the row that begins before it, and of the one that goes on after it
    uint64* part;

    static constexpr int WORDS = (sizeof(Y) + 3) / 4;
    // parts that a lane asks for, where it has registers for them
    static constexpr int AT_ONCE = WORDS < 4 ? 4 / WORDS : 1;
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

    // asks L2 for what a chunk will need of these: its row mostly began a few chunks before, on the same cache lines
    __device__ void ask_for(int64 chunk) const {
        if (!arrived) return;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(arrived + chunk));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(part + 2 * chunk * WORDS));
    }

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
    __device__ void finish(int64 chunk, int spans, I rows, Y* y, Scalar<Y> alpha, Scalar<Y> beta, int update) const {
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

    // The same for one warp of a thread block that has a chunk, and whose shared memory holds the parts: own[0] of the row
    // that begins before the chunk, own[1] of the one that goes on after it. Each half of the warp has one of these rows,
    // and asks for its other parts while it counts as arrived: mostly they are there, and one wait is all. `row` is that of
    // the half
    template <class I>
    __device__ void meet(int64 chunk, int spans, I row, const Y* own, Y* y, Scalar<Y> alpha, Scalar<Y> beta, int update) const {
        constexpr int HALF = WARP / 2;
        const int lane = lane_id(), half = lane / HALF, i = lane % HALF;
        const int first = shuffle(spans, 2 * half), n = shuffle(spans, 2 * half + 1) - first, mine = (int)chunk - first;
        const bool has_share = half ? mine == 0 : first >= 0, are_few = n <= HALF, is_own = i == (are_few ? mine : 0);
        const bool has_part = has_share && are_few && i < n;
        Part others;
        Y sum{};
        bool is_last = false;
        __syncwarp();
        if (has_share && is_own) {
            sum = own[half];
            leave(2 * chunk + (mine == 0), sum);
        }
        if (has_share && i == 0) is_last = atomicInc(arrived + first, n - 1) == n - 1;  // the last one makes it 0 again
        if (has_part && !is_own) others.ask(place(first, first + i));
        const unsigned last = __ballot_sync(FULL, is_last);
        if (!last) return;
        const bool adds = last >> (half * HALF) & 1;
        if (adds && has_part) {
            uint64* const at = place(first, first + i);
            if (!is_own) {
                while (!others.is_there()) others.ask(at);
                sum = others.value();
            }
#pragma unroll
            for (int word = 0; word < WORDS; ++word) at[word] = 0;
        } else {
            sum = Y{};
        }
        for (int apart = HALF / 2; apart; apart /= 2) sum = add(sum, shuffle(sum, lane ^ apart));
        if (adds && are_few && i == 0) store(y + row, sum, alpha, beta, update);
        for (unsigned many = __ballot_sync(FULL, is_last && !are_few); many; many &= many - 1) {
            const int which = __ffs(many) - 1;
            const int64 begin = shuffle(first, which), end = begin + shuffle(n, which);
            sum = warp_sum(share<2>(begin, end));
            if (lane == which) store(y + row, sum, alpha, beta, update);
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
    __device__ void finish(const LaneSums<Y>& sums, Y* y, const Cuts<Y>& cuts, Scalar<Y> alpha, Scalar<Y> beta, int update) const {
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

// U steps are loaded before the first is used, with the targets of their records, so that no store waits for a load.
// Meanwhile the columns of the next U steps are loaded. Matrices of short or uneven rows are bound by instructions, so
// groups of steps without records have a loop of their own, which only multiplies.
//
// `x` gives the entry of x for a column as stored.
template <class A, class Y, class I, int L, int UPDATE, bool CUT, bool KEEPS, class C, class X>
struct Lane {  // the state of a lane while it walks through its chunk
    const Chunk<A, Y, I, L, CUT>& chunk;
    const X& x;
    Y* const y;
    const Cuts<Y>& cuts;
    const Scalar<Y> alpha, beta;
    const Opened<A>& values;
    const C* col;
    const Stored<A>* val;
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
        for (int u = 0; u < W; ++u) group.c[u] = once<KEEPS>(col + u * L);
        group.records = lane_id() < count ? once<KEEPS>(mask + lane_id()) : 0;
    }

    template <int W>
    __device__ void load_values(Stored<A> (&v)[W]) const {
#pragma unroll
        for (int u = 0; u < W; ++u) v[u] = once<KEEPS>(val + u * L);
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
            Stored<A> v[W];
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
                    if (u < count) sum = mac(values.template decoded<Y>(v[u]), xs[u], sum);
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
                    if (u < count) sum = mac(values.template decoded<Y>(v[u]), xs[u], sum);
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

template <class A, class Y, class I, int L, int U, bool AHEAD, int UPDATE, bool CUT, bool KEEPS, class C, class X>
__device__ LaneSums<Y> chunk_matvec(const Cvr<A, I>& m, const Opened<A>& values, const Chunk<A, Y, I, L, CUT>& chunk, const C* col,
                                    const X& x, Y* y, const Cuts<Y>& cuts, Scalar<Y> alpha, Scalar<Y> beta) {
    const int slot = L == WARP || lane_id() < L ? lane_id() : 0;
    const I* wb = m.rec_wb + chunk.wb_start;
    asm("" : "+l"(wb));  // one pointer, not a sum of two in each step
    Lane<A, Y, I, L, UPDATE, CUT, KEEPS, C, X> lane{
        chunk, x, y, cuts, alpha, beta, values, col + slot, values.slot + chunk.first * L + slot, m.rec_mask + chunk.first, wb};
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
__device__ void empty_rows(const Cvr<A, I>& m, int64 from, int64 n_threads, Y* y, Scalar<Y> alpha, Scalar<Y> beta, int update) {
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
