// CSR to CVR, and the way back: to CSR, or the row and column of every slot. After cvr_split_rows, "row" means a non-empty row,
// numbered 0 .. n_rows - 1: ptr (n_rows + 1) has their offsets, row_id their numbers in the matrix, or is null where no
// row is empty.

// cvr_split_rows: the non-empty rows' offsets and numbers, and the empty rows' numbers
//
// mapping   one thread a row, one warp for WARP rows; filled[k] - filled[0] are the non-empty rows before those of warp k
// traffic   a row: 2 sizeof(P) bytes read, sizeof(P) + sizeof(I) written
// races     none
template <class P, class I>
__global__ void cvr_split_rows(const P* indptr, const int64* filled, int64 n_rows, P* ptr, I* row_id, I* empty_row) {
    const int64 row = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    const P begin = row < n_rows ? indptr[row] : P(0), end = row < n_rows ? indptr[row + 1] : P(0);
    const unsigned have_any = __ballot_sync(FULL, begin < end);
    if (row >= n_rows) return;
    const int64 before = filled[row / WARP] - filled[0] + __popc(have_any & ((1u << lane_id()) - 1));
    if (begin < end) {
        ptr[before] = begin;
        row_id[before] = (I)row;
    } else {
        empty_row[row - before] = (I)row;
    }
    if (row == n_rows - 1) ptr[before + (begin < end)] = end;
}

// Where chunks end: the numbers that the host has.
enum Split { NNZ, ROWS, EVEN };

// Where chunks are even, a row counts as one more nonzero, if chunks have so many nonzeros on average: then none is empty. A cut
// moves by less than so many steps.
constexpr int LEAST_WITH_ROWS = 4, NEAR_STEPS = 16;

// The first nonzero of chunk k. Unless chunks have equal lengths, a cut moves to the nearest end of a row, if that is less than a
// part of a chunk away: EVEN a quarter, and NEAR_STEPS, ROWS a half, and there to that of a group of n_lanes rows, if one is as
// near.
template <class P>
__device__ int64 cut_at(int64 k, const P* ptr, int64 n_rows, int64 nnz, int64 n_chunks, int n_lanes, int split) {
    const int64 of_row = split == EVEN && nnz >= n_chunks * LEAST_WITH_ROWS;
    const int64 all = nnz + of_row * n_rows, share = all / n_chunks, aim = k * share + min(k, all % n_chunks);
    if (k >= n_chunks) return nnz;
    if (split == NNZ || k <= 0) return aim;
    int64 row = 0;  // the last one that begins at `aim` or before
    for (int64 after = n_rows; after - row > 1;) {
        const int64 middle = (row + after) / 2;
        (ptr[middle] + of_row * middle <= aim ? row : after) = middle;
    }
    const int64 ideal = min(max((int64)ptr[row], aim - of_row * row), (int64)ptr[row + 1]);
    const int64 group = row - row % n_lanes;
    const int64 most = split == ROWS ? 2 * share : min(share, (int64)(4 * NEAR_STEPS) * n_lanes);
    auto nearer = [&](int64 low, int64 high) { return ideal - ptr[low] <= ptr[high] - ideal ? ptr[low] : ptr[high]; };
    auto close = [&](int64 place) { return 4 * (place < ideal ? ideal - place : place - ideal) < most; };
    const int64 group_end = nearer(group, min(group + n_lanes, n_rows)), row_end = nearer(row, row + 1);
    return split == ROWS && close(group_end) ? group_end : close(row_end) ? row_end : ideal;
}

// The lanes of one chunk while it is filled, one thread a lane. A lane has `count` nonzeros left, from `from` on.
template <class P>
struct Lanes {
    const P* ptr;
    int64 begin, end;      // the chunk's nonzeros
    int64 next, last_row;  // the next row to feed, and the one after the chunk's last
    int n_steps;

    int64 from;
    int count;      // INT_MAX for a lane that pads
    int64 row;      // the row it works on, -1 for none yet
    int entry;      // in tail mode: the entry of tail it adds into
    bool tail_mode;

    static constexpr int PADS = 0x7fffffff;

    __device__ Lanes(const P* ptr, int64 n_rows, int64 begin, int64 end, int n_lanes)
        : ptr(ptr), begin(begin), end(end), from(-1), row(-1), entry(lane_id()), tail_mode(false) {
        next = lower_bound(ptr, n_rows + 1, begin + 1) - 1;
        last_row = lower_bound(ptr, n_rows, end);
        n_steps = (int)((end - begin + n_lanes - 1) / n_lanes);
        count = lane_id() < n_lanes ? 0 : PADS;
    }

    // Feeds rows to the lanes that are dry before `step`, or lets them steal. Returns the mask of lanes that have just
    // finished a run, which ends in a record. Of this lane's record, `to_entry` says whether it names an entry of tail,
    // and `finished` which row or entry. `fed_last` says that tail mode begins: `row` is the lane's entry of tail then.
    // `steals` is increased by the number of steals.
    __device__ unsigned refill(int step, bool& to_entry, int64& finished, bool& fed_last, int& steals) {
        const int lane = lane_id();
        const unsigned dry = __ballot_sync(FULL, count == 0);
        const bool is_dry = dry >> lane & 1;
        const unsigned done = __ballot_sync(FULL, is_dry && from >= 0);
        const int rank = __popc(dry & ((1u << lane) - 1));
        const int64 available = last_row - next;
        fed_last = !tail_mode && step < n_steps && available <= __popc(dry);
        to_entry = tail_mode || (fed_last && rank >= available);
        finished = to_entry ? entry : row;
        if (step == n_steps) return done;

        if (is_dry && rank < available) {
            row = next + rank;
            from = max((int64)ptr[row], begin);
            count = (int)(min((int64)ptr[row + 1], end) - from);
        }
        next += min((int64)__popc(dry), available);
        tail_mode |= fed_last;

        const int average = n_steps - step;
        for (unsigned left = __ballot_sync(FULL, count == 0); left; left &= left - 1) {
            const int thief = __ffs(left) - 1;
            const unsigned rich = __ballot_sync(FULL, count != PADS && count > average);
            if (rich) {
                const int victim = __ffs(rich) - 1;
                const int64 front = shuffle(from, victim);
                if (lane == thief) {
                    from = front;
                    count = average;
                    entry = victim;
                }
                if (lane == victim) {
                    from += average;
                    count -= average;
                }
                ++steals;
            } else if (lane == thief) {
                count = PADS;
            }
        }
        return done;
    }
};

// cvr_count: where every chunk begins, and the sizes of its tables
//
// mapping   one warp a chunk, whose first lanes search the cuts before it, at its start and at its end
// traffic   two columns and an offset a row; no values
// requires  canonical CSR: a row's first column is its smallest
// races     none: every number has one owner
//
// sizes_of (4, n_chunks + 1), whose first column is 0, counts: steps, records, slots of narrow chunks, and rows that this
// chunk is the first to cut. `states` are cleared for the kernel that adds them up.
template <class P, class I>
__global__ void cvr_count(const P* ptr, const I* row_id, const I* indices, int64 n_rows, int64 nnz, int64 n_chunks,
                          int n_lanes, int split, int64* chunk_ptr, int64* sizes_of, int64* states, int n_states, I* col_low,
                          I* col_base, I* carry_row) {
    const int64 thread = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (thread < n_states) states[thread] = 0;
    if (thread < 4) sizes_of[thread * (n_chunks + 1)] = 0;
    const int64 chunk = warp_id();
    if (chunk >= n_chunks) return;
    const int lane = lane_id();
    const int64 cut_of_lane = lane < 3 ? cut_at(chunk + lane - 1, ptr, n_rows, nnz, n_chunks, n_lanes, split) : 0;
    const int64 begin = shuffle(cut_of_lane, 1), end = shuffle(cut_of_lane, 2), cut_before = shuffle(cut_of_lane, 0);
    Lanes<P> lanes(ptr, n_rows, begin, end, n_lanes);
    const int64 first_row = lanes.next, last_row = lanes.last_row;

    I low = indices[begin], high = low;
    for (int64 row = first_row + lane; row < last_row; row += WARP) {
        low = min(low, indices[max((int64)ptr[row], begin)]);
        high = max(high, indices[min((int64)ptr[row + 1], end) - 1]);
    }
    low = warp_min(low);
    high = warp_max(high);

    int steals = 0;
    for (int step = 0; step < lanes.n_steps;) {
        bool to_entry, fed_last;
        int64 finished;
        lanes.refill(step, to_entry, finished, fed_last, steals);
        const int run = min(warp_min(lanes.count), lanes.n_steps - step);
        lanes.count -= lanes.count == Lanes<P>::PADS ? 0 : run;
        step += run;
    }
    const bool narrow = (int64)high - low < NARROW, cut = ptr[first_row] < begin;
    const int64 sizes[4] = {
        lanes.n_steps,
        last_row - first_row + steals,  // one record for each row and for each steal
        narrow ? (int64)lanes.n_steps * n_lanes : 0,
        cut && ptr[first_row] >= cut_before,  // the first chunk whose start cuts this row
    };
    if (lane == 0) {
        for (int i = 0; i < 4; ++i) sizes_of[i * (n_chunks + 1) + chunk + 1] = sizes[i];
        col_low[chunk] = low;
        col_base[chunk] = narrow ? low : I(-1);
        chunk_ptr[chunk] = begin;
        if (chunk == n_chunks - 1) chunk_ptr[n_chunks] = end;
        carry_row[chunk] = cut ? (row_id ? row_id[first_row] : (I)first_row) : I(-1);
    }
}

// Where the tables of every chunk begin, and for every cut row the run of chunks that carry into it.
template <class I>
struct Offsets {
    const int64* sums;  // inclusive prefix sums of sizes_of, as one flat array
    const I* col_base;
    const I* carry_row;
    int64* step_ptr;
    int64* rec_ptr;
    int64* col_ptr;
    I* cut_row;
    int64* cut_ptr;
    int64 n_chunks;

    __device__ int64 before(int size, int64 chunk) const {
        return sums[size * (n_chunks + 1) + chunk] - sums[size * (n_chunks + 1)];
    }

    // The first chunk of a run writes its row and where it begins, the last chunk where it ends; the last one of all the ends of
    // the tables.
    __device__ void put(int64 chunk, int64 step, int64 record, int64 column) const {
        step_ptr[chunk] = step;
        rec_ptr[chunk] = record;
        col_ptr[chunk] = column;
        if (chunk + 1 == n_chunks) {
            step_ptr[n_chunks] = before(0, n_chunks);
            rec_ptr[n_chunks] = before(1, n_chunks);
        }
        if (carry_row[chunk] < 0) return;
        const int64 run = before(3, chunk + 1) - 1;
        if (before(3, chunk) == run) {
            cut_row[run] = carry_row[chunk];
            cut_ptr[2 * run] = chunk;
        }
        if (chunk + 1 == n_chunks || carry_row[chunk + 1] != carry_row[chunk]) cut_ptr[2 * run + 1] = chunk + 1;
    }
};

// cvr_fill: every chunk's tables
//
// mapping   one warp a chunk, one thread a lane; consecutive steps in which no lane changes its row are copied at once
// traffic   reads sizeof(A) + sizeof(I) a nonzero, writes sizeof(A) + 2 or sizeof(I) + 1/8 a slot, sizeof(I) a record
// requires  the counts of cvr_count
// races     none: a warp owns its chunk's part of every table
template <class P, class I, class A>
__global__ void cvr_fill(const P* ptr, const I* row_id, const I* indices, const A* data, int64 n_rows,
                         const int64* chunk_ptr, int n_lanes, Offsets<I> offsets, const I* col_low, A* val,
                         uint16* col_narrow, I* col_wide, uint32* rec_mask, I* rec_wb, I* tail) {
    constexpr int BATCH = 8;
    const int64 chunk = warp_id();
    if (chunk >= offsets.n_chunks) return;
    const int lane = lane_id();
    const bool active = lane < n_lanes;
    Lanes<P> lanes(ptr, n_rows, chunk_ptr[chunk], chunk_ptr[chunk + 1], n_lanes);
    const int64 first = offsets.before(0, chunk), record = offsets.before(1, chunk), of_narrow = offsets.before(2, chunk);
    const I low = col_low[chunk];
    // the columns of narrow chunks follow one another in one table, those of wide chunks in another
    const bool narrow = offsets.col_base[chunk] >= 0;
    const int64 column = narrow ? of_narrow : first * n_lanes - of_narrow;
    if (lane == 0) offsets.put(chunk, first, record, column);
    val += first * n_lanes + lane;
    col_narrow += column + lane;
    col_wide += column + lane;
    rec_mask += first;
    rec_wb += record;

    int steals = 0;
    for (int step = 0;;) {
        bool to_entry, fed_last;
        int64 finished;
        const unsigned done = lanes.refill(step, to_entry, finished, fed_last, steals);
        if (done) {
            if (lane == 0) rec_mask[step - 1] = done;
            if (done >> lane & 1)
                rec_wb[__popc(done & ((1u << lane) - 1))] =
                    to_entry ? ~(I)finished : row_id ? row_id[finished] : (I)finished;
            rec_wb += __popc(done);
        }
        if (fed_last && active)
            tail[chunk * n_lanes + lane] = lanes.row < 0 ? I(-1) : row_id ? row_id[lanes.row] : (I)lanes.row;
        if (step == lanes.n_steps) break;

        const bool pads = lanes.count == Lanes<P>::PADS;
        const int run = min(warp_min(lanes.count), lanes.n_steps - step);
        // the next round sets the mask of the run's last step
        for (int i = lane; i < run - 1; i += WARP) rec_mask[step + i] = 0;
        // BATCH loads, then BATCH stores: the compiler moves no load before a store that may write the same address
        for (int i = 0; active && i < run; i += BATCH) {
            I col[BATCH];
            A value[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                const bool entry = !pads && i + u < run;
                col[u] = entry ? indices[lanes.from + i + u] : low;
                value[u] = entry ? data[lanes.from + i + u] : A{};
            }
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                if (i + u >= run) break;
                const int64 slot = (int64)(step + i + u) * n_lanes;
                val[slot] = value[u];
                if (narrow)
                    col_narrow[slot] = (uint16)(col[u] - low);
                else
                    col_wide[slot] = col[u];
            }
        }
        if (!pads) {
            lanes.from += run;
            lanes.count -= run;
        }
        step += run;
    }
}

// cvr_row_lengths: count[r + 1] += entries of row r, of_chunk[k + 1] = those of chunk k, and of_warp[w + 1] += rows with entries
// of the WARP rows from WARP * w on: the first half of the way back
//
// mapping   one warp a chunk, one thread a lane; a record tells that a lane's run ends, and which row it is of
// traffic   4 bytes a step, sizeof(I) and an atomic a record
// requires  count (n_rows + 1,), of_warp (n_warps + 1,) and the first number of of_chunk (n_chunks + 1,) are zeroed by the host
// races     sums of integers, taken atomically
template <class I>
__global__ void cvr_row_lengths(int64 n_chunks, int n_lanes, const int64* step_ptr, const int64* rec_ptr,
                                const uint32* rec_mask, const I* rec_wb, const I* tail, uint64* count, int64* of_chunk,
                                uint64* of_warp) {
    const int64 chunk = warp_id();
    if (chunk >= n_chunks) return;
    const int lane = lane_id();
    const int64 end = step_ptr[chunk + 1];
    int64 record = rec_ptr[chunk], begun = step_ptr[chunk], total = 0;  // of the lane's run
    for (int64 first = begun; first < end; first += WARP) {
        const uint32 mask = first + lane < end ? rec_mask[first + lane] : 0;
        for (unsigned left = __ballot_sync(FULL, mask != 0); left; left &= left - 1) {
            const int i = __ffs(left) - 1;
            const uint32 records = shuffle(mask, i);
            if (records >> lane & 1) {
                const I wb = rec_wb[record + __popc(records & ((1u << lane) - 1))];
                const I row = wb >= 0 ? wb : tail[chunk * n_lanes + ~wb];
                const int64 length = first + i + 1 - begun;
                if (!atomicAdd(count + row + 1, (uint64)length)) atomicAdd(of_warp + row / WARP + 1, 1ull);
                total += length;
                begun = first + i + 1;
            }
            record += __popc(records);
        }
    }
    total = warp_sum(total);
    if (lane == 0) of_chunk[chunk + 1] = total;
}

// Some steps of a chunk, on their way from slots, which lie step by step, to entries, which lie row by row. Either side is read or
// written in its own order: a warp has the slots of a step at a time, or the entries of a few lanes.
template <class I, class W>
struct Window {
    static constexpr int STEPS = 16, LANES = WARP / STEPS, TURNS = WARP / LANES;
    static constexpr int PAD = -1;
    int place[STEPS][WARP + 1];  // of the entry in each slot, counted from the chunk's first; one column more, against bank conflicts
    I col[STEPS][WARP + 1];
    W value[STEPS][WARP + 1];

    // what this thread has in a turn, of LANES lanes and all steps
    static __device__ int step() { return lane_id() % STEPS; }
    static __device__ int lane(int turn) { return turn * LANES + lane_id() / STEPS; }
};

// cvr_rows: columns and values of every entry to their places in a canonical CSR: cvr_fill the other way round
//
// mapping   one warp a chunk, one thread a lane; entries are written as windows, a few lanes of all its steps at a time
// traffic   reads sizeof(A) + 2 or sizeof(I) a slot, writes sizeof(A) + sizeof(I) an entry
// requires  offsets of rows that are not empty, and chunk_ptr, as cvr_row_lengths has counted. A is a word of a value's size
// races     none: an entry has one slot
template <class I, class A, int WARPS>
__global__ void cvr_rows(const int64* ptr, int64 n_rows, const int64* chunk_ptr, int64 n_chunks, int n_lanes,
                         const int64* step_ptr, const int64* col_ptr, const I* col_base, const uint16* col_narrow,
                         const I* col_wide, const A* val, I* indices, A* data) {
    typedef Window<I, A> W;
    constexpr int BATCH = 8;
    __shared__ W windows[WARPS];
    W& window = windows[threadIdx.x / WARP];
    const int64 chunk = warp_id();
    if (chunk >= n_chunks) return;
    const int lane = lane_id();
    const bool active = lane < n_lanes;
    const int64 begin = chunk_ptr[chunk] - chunk_ptr[0];
    Lanes<int64> lanes(ptr, n_rows, begin, chunk_ptr[chunk + 1] - chunk_ptr[0], n_lanes);
    const I base = col_base[chunk];
    val += step_ptr[chunk] * n_lanes + lane;
    col_narrow += col_ptr[chunk] + lane;
    col_wide += col_ptr[chunk] + lane;
    indices += begin;
    data += begin;

    auto copy = [&](int last) {
        const int from = (last - 1) / W::STEPS * W::STEPS, count = last - from;
        for (int turn = 0; active && turn < count; turn += BATCH) {
            I col[BATCH];
            A value[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                const int64 slot = (int64)(from + min(turn + u, count - 1)) * n_lanes;
                col[u] = base >= 0 ? base + (I)col_narrow[slot] : col_wide[slot];
                value[u] = val[slot];
            }
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                window.col[turn + u][lane] = col[u];
                window.value[turn + u][lane] = value[u];
            }
        }
        __syncwarp();
        for (int turn = 0; turn < W::TURNS; ++turn) {
            const int place = W::step() < count ? window.place[W::step()][W::lane(turn)] : W::PAD;
            if (place < 0) continue;
            indices[place] = window.col[W::step()][W::lane(turn)];
            data[place] = window.value[W::step()][W::lane(turn)];
        }
        __syncwarp();
    };
    for (int step = 0, steals = 0;;) {
        bool to_entry, fed_last;
        int64 finished;
        lanes.refill(step, to_entry, finished, fed_last, steals);
        if (step == lanes.n_steps) break;
        // no lane changes its row in these
        const int run = min(warp_min(lanes.count), lanes.n_steps - step), end = step + run;
        const bool pads = lanes.count == Lanes<int64>::PADS;
        for (const int at = (int)(lanes.from - begin) - step; step < end; ++step) {
            window.place[step % W::STEPS][lane] = pads ? W::PAD : at + step;
            if ((step + 1) % W::STEPS == 0 || step + 1 == lanes.n_steps) copy(step + 1);
        }
        if (!pads) {
            lanes.from += run;
            lanes.count -= run;
        }
    }
}

// cvr_spans: of the row that begins before a chunk and ends in or after it, the first chunk and the one after its last;
// -1 and -1 where there is none, and after the last chunk
//
// mapping   one thread a chunk, which looks its row up
// traffic   8 bytes written a chunk
// races     none
struct CutRow {
    int64 first, end;  // its chunks without the first one
    __device__ operator int64() const { return first; }
};
__global__ void cvr_spans(const CutRow* cuts, int64 n_cut, int64 n_chunks, int* span) {
    const int64 chunk = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (chunk > n_chunks) return;
    const int64 n = lower_bound(cuts, n_cut, chunk + 1);  // that begin in or before the chunk
    const bool is_cut = n && chunk < cuts[n - 1].end;
    span[2 * chunk] = is_cut ? (int)cuts[n - 1].first - 1 : -1;
    span[2 * chunk + 1] = is_cut ? (int)cuts[n - 1].end : -1;
}
