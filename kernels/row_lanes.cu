// y = alpha * A @ x + beta * y for CVR's nonzeros row by row: see gpu/row_lanes.py.

#include "values.cuh"
#include "cvr.cuh"
#include "cvr_product.cuh"

// a column as stored, where there is no nonzero
template <class I>
__device__ bool is_pad(uint16 stored, I) {
    return stored == 0xffff;
}
template <class I>
__device__ bool is_pad(I stored, I) {
    return stored < 0;
}

// read often, by neighbours; stays where it stands, unlike what `cached` loads
template <class T>
__device__ T kept(const T* p) {
    return Load<T>::value(__ldca(reinterpret_cast<const typename Load<T>::Word*>(p)));
}

// Rows in turn, each in as many lanes as it fills with E slots; at most THREADS lanes a part. A part begins at a row where
// one begins near; else it cuts one. Of a row's g lanes the first has the first nonzero and every g-th after it, the second
// the second one, and so on: at each step they have neighbours.
template <class A, class C, class I>
struct RowLanes {
    Values<A> val;      // slot e of a warp's lane l: (warp * E + e) * WARP + l
    const C* col;       // likewise, from the part's base; pads: is_pad
    const int64* base;  // a part's
    const uint2* ends;  // a warp's lanes that are the last ones of rows, a bit each; the number of its first row to end
    const I* row;       // by that number; null: the number itself, as there are no empty rows
    const I* cut_row;   // (n_parts + 1,) the row that begins before a part and goes on in it; else -1
    const I* empty_row;
    int64 n_parts, n_empty;
};

// row_lanes_matvec: a thread block a part; blocks beyond these store empty rows
//
// mapping   one thread a lane: all its columns and values are loaded before the first is used, then all entries of x. A
//           row's lanes are added by a segmented scan, then warps in turn, then parts (Cuts)
// traffic   slot: sizeof(A) + sizeof(C) bytes, and x; warp: 8 bytes; row: sizeof(I) + sizeof(Y)
// registers as many as it takes: with full occupancy as its aim the compiler would keep fewer loads under way
// races     none: a row has one owner, its last lane, who adds what others have of it: of warps after a barrier, of parts
//           once it is marked as there
template <class A, class Y, class C, class I, int E, int THREADS>
__global__ __launch_bounds__(THREADS, 1) void row_lanes_matvec(const RowLanes<A, C, I> m, const Y* __restrict__ x, Y* y,
                                                               const Cuts<Y> cuts, Y alpha, Y beta, int update) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ Y of_warp[WARPS];  // the sum of the row that a warp's last lane is in, if it goes on
    __shared__ bool has_end[WARPS];
    __shared__ Y of_cut_row[2];  // of the row that begins before the part, and of the one that goes on after it
    const Opened<A>& values = m.val.opened();
    const int lane = lane_id(), warp = threadIdx.x / WARP;
    const int64 part = blockIdx.x;
    if (part >= m.n_parts) {
        const int64 n_threads = (gridDim.x - m.n_parts) * THREADS;
#pragma unroll 1
        for (int64 i = (part - m.n_parts) * THREADS + threadIdx.x; i < m.n_empty; i += n_threads)
            store(y + m.empty_row[i], Y{}, alpha, beta, update);
        return;
    }
    const int64 first = (part * WARPS + warp) * (WARP * E) + lane;
    C c[E];
    Stored<A> v[E];
    Y xs[E];
#pragma unroll
    for (int e = 0; e < E; ++e) c[e] = stream(m.col + first + e * WARP);
    const Y* const near = x + m.base[part];
    const uint2 facts = m.ends[part * WARPS + warp];
#pragma unroll
    for (int e = 0; e < E; ++e) v[e] = stream(values.slot + first + e * WARP);
    const I before = m.cut_row[part], after = m.cut_row[part + 1];
    const int spans = warp == 0 && lane < 4 ? cuts.span[2 * part + lane] : -1;
    __syncwarp();  // keeps loads where they stand
#pragma unroll
    for (int e = 0; e < E; ++e) xs[e] = is_pad<I>(c[e], 0) ? Y{} : kept(near + c[e]);
    const unsigned ends = facts.x, ends_before = ends & ((1u << lane) - 1);
    const bool is_end = ends >> lane & 1;
    int64 row = (int)facts.y + __popc(ends_before);
    if (is_end && m.row) row = m.row[row];
    __syncwarp();  // likewise
    Y sum{};
#pragma unroll
    for (int e = 0; e < E; ++e) mac_unless(is_pad<I>(c[e], 0), values.template decoded<Y>(v[e]), xs[e], sum);
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

// row_lanes_fill: the slots of lanes, each with the number of its nonzero's slot in CVR's tables
//
// `start` (n_rows + 1,): the lanes at which rows begin, of all lanes in turn; `begin` likewise for parts; `ptr`: the
// nonzeros at which rows begin. `slot_of` and `col_of` are CVR's of each nonzero, row by row. Rows are those that are not
// empty. The number of a pad's slot is that of a nonzero nearby, and its column -1. `range[2 * part]` becomes the smallest
// column of a part, the next number the largest
//
// mapping   a thread block a part, one thread a lane
// traffic   8 + sizeof(I) bytes a slot are read, 4 + sizeof(I) written
// races     none but integer atomics
template <class I, int E, int THREADS>
__global__ void row_lanes_fill(const int64* start, const int64* begin, const int64* ptr, int64 n_rows, const int64* slot_of,
                               const I* col_of, uint32* slot, I* col, int64* range, uint2* ends) {
    __shared__ int64 low, high;
    const int64 part = blockIdx.x, in_part = begin[part + 1] - begin[part];
    if (threadIdx.x == 0) low = 0x7fffffffffffffffll, high = 0;
    __syncthreads();
    const bool is_there = threadIdx.x < in_part;
    const int64 number = begin[part] + (is_there ? (int64)threadIdx.x : in_part - 1);
    const int64 row = lower_bound(start, n_rows + 1, number + 1) - 1;
    const int64 lanes = start[row + 1] - start[row], length = is_there ? ptr[row + 1] - ptr[row] : 0;
    int64 first = (part * THREADS + threadIdx.x) / WARP * (WARP * E) + lane_id(), k = number - start[row];
    int64 least = 0x7fffffffffffffffll, most = 0;
#pragma unroll 1
    for (int e = 0; e < E; ++e, k += lanes, first += WARP) {
        const int64 at = ptr[row] + (k < length ? k : 0);
        slot[first] = (uint32)slot_of[at];
        col[first] = k < length ? col_of[at] : I(-1);
        if (k < length) least = min(least, (int64)col_of[at]), most = max(most, (int64)col_of[at]);
    }
    const unsigned last = __ballot_sync(FULL, is_there && number + 1 == start[row + 1]);
    const int64 warp = part * (THREADS / WARP) + threadIdx.x / WARP;
    if (lane_id() == 0) ends[warp] = make_uint2(last, (uint32)row);
    atomicMin(&low, least);
    atomicMax(&high, most);
    __syncthreads();
    if (threadIdx.x < 2) range[2 * part + threadIdx.x] = threadIdx.x ? high : low;
}
