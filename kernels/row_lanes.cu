// y = alpha * A @ x + beta * y for nonzeros row by row, in small matrices of either format: see gpu/row_lanes.py.

#include "values.cuh"
#include "cvr.cuh"
#include "cvr_product.cuh"

// read often, by neighbours; stays where it stands, unlike what `cached` loads
struct AtAllLevels {
    template <class P>
    static __device__ P load(const P* part) {
        return __ldca(part);
    }
};
template <class T>
__device__ T kept(const T* p) {
    return loaded<AtAllLevels>(p);
}

// Rows in turn, each in as many lanes as it fills with E slots; at most THREADS lanes a part. A part begins at a row where
// one begins near; else it cuts one. Of a row's g lanes the first has the first nonzero and every g-th after it, the second
// the second one, and so on: at each step they have neighbours.
//
// EVEN: every row has one lane, also an empty one, no part is left a lane short, and columns are as they are. So a row's number
// says where all of it is.
template <class A, class C, class I>
struct RowLanes {
    Values<A> val;      // slot e of a warp's lane l: (warp * E + e) * WARP + l
    const C* col;       // likewise, from the part's base; pads: is_padding
    const int64* base;  // a part's
    const uint2* ends;  // a warp's lanes that are the last ones of rows, a bit each; the number of its first row to end
    const I* row;       // by that number; null: the number itself, as there are no empty rows
    const I* cut_row;   // (n_parts + 1,) the row that begins before a part and goes on in it; else -1
    const I* empty_row;
    int64 n_parts, n_empty, n_rows;
};

// row_lanes_matvec: a thread block a part; blocks beyond these store empty rows
//
// mapping   one thread a lane: all its columns and values are loaded before the first is used, then all entries of x. A
//           row's lanes are added by a segmented scan, then warps in turn, then parts (Cuts). EVEN: a product waits for columns
//           and for x, and for nothing before
// traffic   slot: sizeof(A) + sizeof(C) bytes, and x; warp: 8 bytes; row: sizeof(I) + sizeof(Y)
// registers as many as it takes: with full occupancy as its aim the compiler would keep fewer loads under way
// races     none: a row has one owner, its last lane, who adds what others have of it: of warps after a barrier, of parts
//           once it is marked as there
//
// AT_ONCE: a lane waits for its entries of x once, which takes registers
template <class A, class Y, class C, class I, int E, int THREADS, bool KEEPS, bool AT_ONCE, bool EVEN>
__global__ __launch_bounds__(THREADS, 1) void row_lanes_matvec(const RowLanes<A, C, I> m, const Y* __restrict__ x, Y* y,
                                                               const Cuts<Y> cuts, Scalar<Y> alpha, Scalar<Y> beta, int update) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ Y of_warp[WARPS];  // the sum of the row that a warp's last lane is in, if it goes on
    __shared__ bool has_end[WARPS];
    __shared__ Y of_cut_row[2];  // of the row that begins before the part, and of the one that goes on after it
    const Opened<A>& values = m.val.opened();
    const int lane = lane_id(), warp = threadIdx.x / WARP;
    const int64 part = blockIdx.x;
    if (!EVEN && part >= m.n_parts) {
        const int64 n_threads = (gridDim.x - m.n_parts) * THREADS;
#pragma unroll 1
        for (int64 i = (part - m.n_parts) * THREADS + threadIdx.x; i < m.n_empty; i += n_threads)
            store(y + m.empty_row[i], Y{}, alpha, beta, update);
        return;
    }
    if (!EVEN && threadIdx.x == 0) cuts.ask_for(part);
    const int64 first = (part * WARPS + warp) * (WARP * E) + lane;
    C c[E];
    Stored<A> v[E];
    Y xs[E];
#pragma unroll
    for (int e = 0; e < E; ++e) c[e] = once<KEEPS>(m.col + first + e * WARP);
    const Y* near = EVEN ? x : x + m.base[part];
    if (AT_ONCE) asm("" : "+l"(near));  // one pointer, not a sum of two for each entry
    const uint2 facts = EVEN ? uint2{} : m.ends[part * WARPS + warp];
#pragma unroll
    for (int e = 0; e < E; ++e) v[e] = once<KEEPS>(values.slot + first + e * WARP);
    const I before = EVEN ? I(-1) : m.cut_row[part], after = EVEN ? I(-1) : m.cut_row[part + 1];
    const int spans = !EVEN && warp == 0 && lane < 4 ? cuts.span[2 * part + lane] : -1;
    __syncwarp();  // keeps loads where they stand
#pragma unroll
    for (int e = 0; e < E; ++e) xs[e] = is_padding<I>(c[e], 0) ? Y{} : kept(near + c[e]);
    const unsigned ends = facts.x, ends_before = ends & ((1u << lane) - 1);
    const bool is_end = ends >> lane & 1;
    int64 row = EVEN ? part * THREADS + threadIdx.x : (int)facts.y + __popc(ends_before);
    if (!EVEN && is_end && m.row) row = m.row[row];
    __syncwarp();  // likewise
    if (AT_ONCE) all_asked_for(near);
    Y sum{};
#pragma unroll
    for (int e = 0; e < E; ++e) mac_unless(is_padding<I>(c[e], 0), values.template decoded<Y>(v[e]), xs[e], sum);
    if (EVEN) {
        if (row < m.n_rows) store(y + row, sum, alpha, beta, update);
        return;
    }
    const int reach = lane - (WARP - __clz(ends_before));  // lanes of the row before this one
#pragma unroll 1
    for (int apart = 1; __any_sync(FULL, apart <= reach); apart *= 2) {
        const Y other = shuffle(sum, max(lane - apart, 0));
        if (apart <= reach) sum = add(other, sum);
    }
    if (lane == WARP - 1) {
        of_warp[warp] = is_end ? Y{} : sum;
        has_end[warp] = ends;
    }
    __syncthreads();
    bool is_first = !ends_before;  // of the part's lanes that end a row
    const bool is_last = threadIdx.x == THREADS - 1 && after >= 0;
    if (is_first && (is_end || is_last)) {
        Y of_others{};
#pragma unroll 1
        for (int w = 0; w < warp; ++w) {
            of_others = has_end[w] ? of_warp[w] : add(of_others, of_warp[w]);
            is_first &= !has_end[w];
        }
        if (warp) sum = add(of_others, sum);
    }
    const bool goes_on = is_first && before >= 0;  // the row began before the part
    if (is_end && !goes_on) store(y + row, sum, alpha, beta, update);
    if (before < 0 && after < 0) return;
    if (goes_on ? is_end || is_last : is_last) of_cut_row[!goes_on] = sum;
    __syncthreads();
    if (warp == 0) cuts.meet(part, spans, lane < WARP / 2 ? before : after, of_cut_row, y, alpha, beta, update);
}

// How lanes are cut into parts of about THREADS - SPARE of them. A part begins at a row, if one does in the SPARE lanes before.
// So all parts are found at once.
template <int THREADS, int SPARE>
struct Parts {
    const int64* start;  // (n_rows + 1,) the lanes at which rows begin, of all lanes in turn
    int64 n_rows;
    static constexpr int STEP = THREADS - SPARE;

    // of a lane; an empty row has none
    __device__ int64 row(int64 of_lane) const { return lower_bound(start, n_rows + 1, of_lane + 1) - 1; }

    __device__ int64 begin(int64 part) const {
        const int64 place = min(part * STEP, start[n_rows]), at = start[row(place)];
        return at >= part * STEP - SPARE ? at : place;
    }

    // that has a lane
    __device__ int64 part(int64 of_lane) const {
        const int64 last = (of_lane + SPARE) / STEP;
        return begin(last) <= of_lane ? last : last - 1;
    }
};

// row_lanes_fill: the slots of lanes, each with the number of its nonzero's slot in the format's tables, or 0; and all else that
// RowLanes has. EVEN takes no SPARE, and needs no more than the columns
//
// `ptr`: the nonzeros at which rows begin; `source_of` and `col_of` are of each nonzero, row by row. `span` has the first part of
// a row that is cut and the one after its last, as Cuts. `found` becomes 1 and 1 where some columns are too far from the base
// of their part, and where a row is cut
//
// mapping   a thread block a part, one thread a lane
// traffic   4 + sizeof(I) bytes a slot are read, 4 + sizeof(C) written
// races     none but integer atomics; all that write `found` write the same
template <class C, class I, int E, int THREADS, int SPARE>
__global__ void row_lanes_fill(const int64* start, const int64* ptr, int64 n_rows, const I* empty_row, int64 n_empty,
                               const int* source_of, const I* col_of, int* source, C* col, int64* base, uint2* ends, I* row_of,
                               I* cut_row, int2* span, int64* found) {
    constexpr bool IS_NARROW = sizeof(C) < sizeof(I);
    __shared__ int64 low, high, begin[2];
    const Parts<THREADS, SPARE> parts{start, n_rows};
    const int64 part = blockIdx.x;
    if (threadIdx.x == 0) low = 0x7fffffffffffffffll, high = 0;
    if (threadIdx.x < 2) begin[threadIdx.x] = parts.begin(part + threadIdx.x);
    __syncthreads();
    const bool is_there = begin[0] + threadIdx.x < begin[1];
    const int64 number = is_there ? begin[0] + threadIdx.x : begin[1] - 1, row = parts.row(number);
    const int64 lanes = start[row + 1] - start[row], length = is_there ? ptr[row + 1] - ptr[row] : 0;
    const int64 first = (part * THREADS + threadIdx.x) / WARP * (WARP * E) + lane_id();
    I c[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
        const int64 k = number - start[row] + e * lanes, at = ptr[row] + k;
        c[e] = k < length ? col_of[at] : I(-1);
        source[first + e * WARP] = k < length ? source_of[at] : 0;
    }
    if (IS_NARROW) {
        int64 least = 0x7fffffffffffffffll, most = 0;
        for (int e = 0; e < E; ++e)
            if (c[e] >= 0) least = min(least, (int64)c[e]), most = max(most, (int64)c[e]);
        atomicMin(&low, least);
        atomicMax(&high, most);
        __syncthreads();
    }
    const int64 from = IS_NARROW ? low : 0;
#pragma unroll
    for (int e = 0; e < E; ++e) col[first + e * WARP] = c[e] < 0 ? C(-1) : C(c[e] - from);

    // the rows that end in this warp's lanes, by their numbers among those that are not empty
    const unsigned last = __ballot_sync(FULL, is_there && number + 1 == start[row + 1]);
    int64 rank = lane_id() == 0 ? row - lower_bound(empty_row, n_empty, row) : 0;
    rank = shuffle(rank, 0);
    if (lane_id() == 0) ends[part * (THREADS / WARP) + threadIdx.x / WARP] = make_uint2(last, (uint32)rank);
    if (n_empty && last >> lane_id() & 1) row_of[rank + __popc(last & ((1u << lane_id()) - 1))] = (I)row;

    if (threadIdx.x) return;
    base[part] = from;
    if (IS_NARROW && high - low >= 0xffff) found[0] = 1;
    const bool is_cut = start[row] < begin[0];
    cut_row[part] = is_cut ? (I)row : I(-1);
    span[part] = is_cut ? make_int2((int)parts.part(start[row]), (int)parts.part(start[row + 1] - 1) + 1) : make_int2(-1, -1);
    if (is_cut) found[1] = 1;
    if (part + 1 < gridDim.x) return;
    cut_row[part + 1] = I(-1);
    span[part + 1] = make_int2(-1, -1);
}
