// Y = alpha * A @ X + beta * Y for CVR where rows of X are long enough for a warp each, X (n_cols, k) and Y (n_rows, k)
// row-major: see matrix.cuh for the columns. What the kernel of cvr_matmat.cu does for each lane of a warp is done here
// once a nonzero.

#include "values.cuh"
#include "cvr.cuh"
#include "matrix.cuh"
#include "cvr_matmat.cuh"

// A slot of a chunk.
template <class V, class I>
struct alignas(sizeof(V) > 8 ? 8 : 16) Slot {
    V value;
    I col;
    I to;  // where it has a record: what that names
};

// Reads a chunk for the warps of its thread block, each of which follows Q lanes.
template <class A, class I, int L, int Q>
struct Reader {
    const Stored<A>* value;
    const uint16* narrow;
    const I* wide;
    const uint32* rec_mask;
    const I* rec_wb;
    bool is_narrow;
    int n_steps, n_records;  // n_records: before the next slots
    int step, lane;          // of the thread's slot among the first

    __device__ Reader(const Cvr<A, I>& m, const Opened<A>& values, int64 chunk) {
        const int64 first = m.step_ptr[chunk], first_col = m.col_ptr[chunk];
        n_steps = (int)(m.step_ptr[chunk + 1] - first);
        n_records = 0;
        value = values.slot + first * L;
        narrow = m.col_narrow + first_col;
        wide = m.col_wide + first_col;
        is_narrow = m.col_base[chunk] >= 0;
        rec_mask = m.rec_mask + first;
        rec_wb = m.rec_wb + m.rec_ptr[chunk];
        step = lane_id() / Q;
        lane = threadIdx.x / WARP * Q + lane_id() % Q;
    }

    // the lanes with a record at the thread's step of those from `begin` on
    __device__ uint32 records(int begin) const { return begin + step < n_steps ? cached(rec_mask + begin + step) : 0; }

    // The thread's slot of the steps from `begin` on, whose records are `mask`. Beyond the last step it is as a pad, with a
    // valid column. Returns which of the warp's slots have records.
    __device__ unsigned read(Slot<Stored<A>, I>& slot, int begin, uint32 mask) {
        const int at = (begin + step) * L + lane;
        slot.col = 0;
        slot.value = {};
        if (begin + step < n_steps) {
            slot.col = is_narrow ? (I)cached(narrow + at) : cached(wide + at);
            slot.value = cached(value + at);
        }
        const uint32 lane_bit = 1u << lane;
        int upto = __popc(mask);  // records up to the thread's step
#pragma unroll
        for (int apart = Q; apart < WARP; apart *= 2) {
            const int other = __shfl_up_sync(FULL, upto, apart);
            if (lane_id() >= apart) upto += other;
        }
        slot.to = 0;
        if (mask & lane_bit)
            slot.to = cached(rec_wb + (n_records + upto - __popc(mask) + __popc(mask & (lane_bit - 1))));
        n_records += __shfl_sync(FULL, upto, WARP - 1);
        return __ballot_sync(FULL, (mask & lane_bit) != 0);
    }
};

// thread blocks of so many warps for 1024 threads a multiprocessor, no more than every GPU holds
__device__ constexpr int blocks_of(int warps) { return warps > 2 ? 32 / warps : 16; }

// cvr_matmat_warps: all chunks
//
// mapping   one thread block a chunk and WARP * V columns (tile_of_block() counts these), one warp Q neighbouring lanes of the
//           chunk. Its threads load the slots of WARP / Q steps, one each, a round ahead, and pass them on by shuffles; U rows
//           of X are under way together
// traffic   nonzero: sizeof(A) + 2 or sizeof(I) + 1/8 bytes for each WARP * V columns, and a row of X from L1 or L2; row:
//           sizeof(I) + k sizeof(Y)
// requires  as cvr_matmat. Q divides L, and U divides WARP / Q; a lane that takes from another one does so up to the chunk's
//           last step; L / Q warps
// races     none: as cvr_matmat. A warp alone reads and writes the entries of its lanes, up to the barrier behind which what
//           others took lies there
template <class A, class Y, class I, int L, int Q, int V, int U, int UPDATE>
__global__ __launch_bounds__(L / Q * WARP, blocks_of(L / Q)) void cvr_matmat_warps(
    const Cvr<A, I> m, int k, const Y* __restrict__ x, Y* __restrict__ y, const MatrixCuts<Y> cuts, Y alpha, Y beta) {
    constexpr int WARPS = L / Q, STEPS = WARP / Q, TILE = WARP * V;
    typedef Columns<Y, V, 1, TILE> Part;
    const Opened<A>& values = m.val.opened();
    const int warp = threadIdx.x / WARP;
    const int at = (int)min(tile_of_block() * TILE + lane_id() * V, (int64)k);
    const uint32 pitch = (uint32)k * sizeof(Y);
#pragma unroll 1
    for (int64 i = blockIdx.x * (int64)WARPS + warp; i < m.n_empty; i += gridDim.x * (int64)WARPS)
        Part{}.store(y + (int64)m.empty_row[i] * k + at, at, k, alpha, beta, UPDATE);
    __shared__ alignas(16) Y entries[L][TILE];  // what a lane adds to its own entry of tail; at the end, to another's,
    __shared__ int taken_from[L];               // and whose; -1: nothing
    __shared__ Slot<LookedUp<A>, I> slots[WARPS * WARP];
    if (blockIdx.x >= m.n_chunks) return;

    const int64 chunk = blockIdx.x;
    const I base = m.col_base[chunk];
    const I before = cuts.span ? m.carry_row[chunk] : I(-1);
    const I after = cuts.span && chunk + 1 < m.n_chunks ? m.carry_row[chunk + 1] : I(-1);
    if (base >= 0) x = row_at(x, base, pitch);
    x += at < k ? at : 0;  // lanes beyond the last column compute too
    y += at;
    if (threadIdx.x < L) taken_from[threadIdx.x] = -1;
    __syncthreads();

    Reader<A, I, L, Q> reader(m, values, chunk);
    Slot<Stored<A>, I> next;
    unsigned next_ends = reader.read(next, 0, reader.records(0));
    uint32 records = reader.records(STEPS);
    Part sum[Q] = {};
    unsigned owns = 0, takes = 0;  // bits: lanes of the warp that have added to their own entry, and to another's
#pragma unroll 1
    for (int begin = 0; begin < reader.n_steps; begin += STEPS) {
        __syncwarp();  // the slots before are done with
        slots[threadIdx.x] = {values.looked_up(next.value), next.col, next.to};
        __syncwarp();
        const unsigned all_ends = next_ends;
        next_ends = reader.read(next, begin + STEPS, records);
        records = reader.records(begin + 2 * STEPS);
        const int n_steps = min(STEPS, reader.n_steps - begin);
#pragma unroll 1
        for (int step = 0; step < n_steps; step += U) {
            const unsigned ends = all_ends >> (step * Q);
#pragma unroll
            for (int q = 0; q < Q; ++q) {
                const auto* const slot = slots + (warp * WARP + step * Q + q);
                unsigned of_lane = 0;
                Part of_x[U];
                Y a[U];
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    of_lane |= 1u << (u * Q + q);
                    of_x[u].take(row_at(x, slot[u * Q].col, pitch), 0);
                    a[u] = values.template widened<Y>(slot[u * Q].value);
                }
                if (!(ends & of_lane)) {
#pragma unroll
                    for (int u = 0; u < U; ++u) sum[q].add_product(a[u], of_x[u]);
                    continue;
                }
                const int lane = warp * Q + q;
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    if (takes >> q & 1) continue;
                    sum[q].add_product(a[u], of_x[u]);
                    if (!(ends >> (u * Q + q) & 1)) continue;
                    const I to = slot[u * Q].to;
                    if (to < 0 && ~to != lane) {
                        takes |= 1u << q;
                        if (lane_id() == 0) taken_from[lane] = (int)~to;
                        continue;
                    }
                    if (to < 0) owns |= 1u << q;
                    if (UPDATE != PLAIN && to >= 0 && to != before) {
                        sum[q].store(row_at(y, to, pitch), at, k, alpha, beta, UPDATE);
                    } else {
                        Y* place = to != before ? row_at(y, to, pitch) : row_at(cuts.part + at, 2 * chunk, pitch);
                        if (to < 0) place = entries[lane] + lane_id() * V;
                        sum[q].store(place, at, k, alpha, beta, PLAIN);
                    }
                    sum[q] = {};
                }
            }
        }
    }

#pragma unroll
    for (int q = 0; q < Q; ++q) {
        Y* const entry = entries[warp * Q + q] + lane_id() * V;
        Part own = {};
        if (owns >> q & 1) own.take(entry, 0);
        if (takes >> q & 1) sum[q].keep(entry, 0);
        sum[q] = own;
    }
    __syncthreads();
    const int from = lane_id() < L ? taken_from[lane_id()] : -1;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
        const int lane = warp * Q + q;
        const I tail = m.tail[chunk * L + lane];
        uint32 others = __ballot_sync(FULL, from == lane);
        if (tail < 0) continue;
#pragma unroll 1
        for (; others; others &= others - 1) {
            Part taken;
            taken.take(entries[__ffs(others) - 1] + lane_id() * V, 0);
            sum[q].add(taken);
        }
        if (tail == before || tail == after)
            sum[q].store(row_at(cuts.part + at, 2 * chunk + (tail != before), pitch), at, k, alpha, beta, PLAIN);
        else
            sum[q].store(row_at(y, tail, pitch), at, k, alpha, beta, UPDATE);
    }
    if (before >= 0 || after >= 0)
        add_parts<UPDATE, TILE, WARPS, Part>(cuts, m, chunk, before, after, warp, y, k, at, alpha, beta,
                                             entries[warp] + lane_id() * V, taken_from);
}
