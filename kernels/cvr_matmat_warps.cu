// Y = alpha * A @ X + beta * Y for CVR, long rows of X and long chunks, X (n_cols, k) and Y (n_rows, k) row-major: see
// matrix.cuh for the columns. A multiprocessor has one chunk at a time, so that few rows of A advance together and meet rows
// of X in L1; and what the kernel of cvr_matmat.cu decodes for each lane of a warp, a warp decodes once here.

#include "values.cuh"
#include "cvr.cuh"
#include "matrix.cuh"
#include "cvr_matmat.cuh"

// A slot of a chunk.
template <class V, class I>
struct Slot {
    V value;
    I col;
    I to;  // where it has a record: what that names
};

// Reads the slots of a lane of a chunk for a warp, WARP steps at a time: one each thread.
template <class A, class I, int L>
struct Reader {
    const Stored<A>* value;
    const uint16* narrow;
    const I* wide;
    const uint32* rec_mask;
    const I* rec_wb;
    bool is_narrow;
    int n_steps, lane, n_records;  // n_records: of all lanes, at the steps that were read

    __device__ Reader(const Cvr<A, I>& m, const Opened<A>& values, int64 chunk, int lane) : lane(lane), n_records(0) {
        const int64 first = m.step_ptr[chunk], first_col = m.col_ptr[chunk];
        n_steps = (int)(m.step_ptr[chunk + 1] - first);
        value = values.slot + first * L;
        narrow = m.col_narrow + first_col;
        wide = m.col_wide + first_col;
        is_narrow = m.col_base[chunk] >= 0;
        rec_mask = m.rec_mask + first;
        rec_wb = m.rec_wb + m.rec_ptr[chunk];
    }

    // the lanes with a record at a step; none beyond the last one
    __device__ uint32 records(int step) const { return step < n_steps ? cached(rec_mask + step) : 0; }

    // The slot of a step, where `mask` are the lanes with a record. Beyond the last step it is as a pad, with a valid column.
    // Returns in which of the threads' slots the lane has a record.
    __device__ unsigned read(Slot<Stored<A>, I>& slot, int step, uint32 mask) {
        const int at = step * L + lane;
        slot.col = 0;
        slot.value = {};
        if (step < n_steps) {
            slot.col = is_narrow ? (I)cached(narrow + at) : cached(wide + at);
            slot.value = cached(value + at);
        }
        const int upto = records_up_to(mask);
        const uint32 lane_bit = 1u << lane;
        slot.to = 0;
        if (mask & lane_bit) slot.to = cached(rec_wb + (n_records + upto - __popc(mask) + __popc(mask & (lane_bit - 1))));
        n_records += __shfl_sync(FULL, upto, WARP - 1);
        return __ballot_sync(FULL, (mask & lane_bit) != 0);
    }
};

// cvr_matmat_warps: all chunks
//
// mapping   one thread block a chunk and WARP * V columns (tile_of_block() counts these), one warp a lane of the chunk. Its
//           threads load a slot each, WARP steps ahead, and pass them on through shared memory; U rows of X are under way
//           together
// traffic   as cvr_matmat
// requires  as cvr_matmat; what a lane takes from another one reaches to the chunk's last step; U divides WARP; L warps
// races     none: as cvr_matmat. Only its own warp uses a lane's slots and, up to the last barrier, its entry
template <class A, class Y, class I, int L, int V, int U, int UPDATE>
__global__ __launch_bounds__(L* WARP, L > 2 ? WARP / L : 16) void cvr_matmat_warps(
    const Cvr<A, I> m, int k, const Y* __restrict__ x, Y* __restrict__ y, const MatrixCuts<Y> cuts, Y alpha, Y beta) {
    constexpr int TILE = WARP * V;
    typedef Columns<Y, V, 1, TILE> Part;
    const Opened<A>& values = m.val.opened();
    const int lane = threadIdx.x / WARP;
    const int at = (int)min(tile_of_block() * TILE + lane_id() * V, (int64)k);
    const uint32 pitch = (uint32)k * sizeof(Y);
#pragma unroll 1
    for (int64 i = blockIdx.x * (int64)L + lane; i < m.n_empty; i += gridDim.x * (int64)L)
        Part{}.store(y + (int64)m.empty_row[i] * k + at, at, k, alpha, beta, UPDATE);
    __shared__ alignas(16) Y entries[L][TILE];    // what a lane adds to its own entry of tail; at the end, to another's,
    __shared__ int taken_from[L > 1 ? L : 2];     // and whose; -1: nothing
    __shared__ alignas(16) Slot<LookedUp<A>, I> slots[L][WARP];
    if (blockIdx.x >= m.n_chunks) return;

    const int64 chunk = blockIdx.x;
    const I base = m.col_base[chunk];
    const I before = cuts.span ? m.carry_row[chunk] : I(-1);
    const I after = cuts.span && chunk + 1 < m.n_chunks ? m.carry_row[chunk + 1] : I(-1);
    const I tail = m.tail[chunk * L + lane];
    if (base >= 0) x = row_at(x, base, pitch);
    x += at < k ? at : 0;  // lanes beyond the last column compute too
    y += at;
    Y* const entry = entries[lane] + lane_id() * V;
    Reader<A, I, L> reader(m, values, chunk, lane);
    Slot<Stored<A>, I> next;
    unsigned next_ends = reader.read(next, lane_id(), reader.records(lane_id()));
    uint32 records = reader.records(WARP + lane_id());
    Part sum = {};
    bool owns = false;   // whether the lane has added to its own entry,
    int takes_from = -1;  // and to whose of another lane, for which `sum` is then
#pragma unroll 1
    for (int begin = 0; begin < reader.n_steps; begin += WARP) {
        __syncwarp();  // the slots before are done with
        slots[lane][lane_id()] = {values.looked_up(next.value), next.col, next.to};
        __syncwarp();
        const unsigned all_ends = next_ends;
        next_ends = reader.read(next, begin + WARP + lane_id(), records);
        records = reader.records(begin + 2 * WARP + lane_id());
        const int n_steps = min(WARP, reader.n_steps - begin);
#pragma unroll 1
        for (int step = 0; step < n_steps; step += U) {
            const auto* const slot = slots[lane] + step;
            const unsigned ends = all_ends >> step & (unsigned)((1ull << U) - 1);
            Part of_x[U];
#pragma unroll
            for (int u = 0; u < U; ++u) of_x[u].take(row_at(x, slot[u].col, pitch), 0);
            if (!ends) {
#pragma unroll
                for (int u = 0; u < U; ++u) sum.add_product(values.template widened<Y>(slot[u].value), of_x[u]);
                continue;
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (takes_from >= 0) continue;
                sum.add_product(values.template widened<Y>(slot[u].value), of_x[u]);
                if (!(ends >> u & 1)) continue;
                const I to = slot[u].to;
                if (to < 0 && ~to != lane) {
                    takes_from = (int)~to;
                    continue;
                }
                owns |= to < 0;
                if (UPDATE != PLAIN && to >= 0 && to != before) {
                    sum.store(row_at(y, to, pitch), at, k, alpha, beta, UPDATE);
                } else {
                    Y* const of_row = to != before ? row_at(y, to, pitch) : row_at(cuts.part + at, 2 * chunk, pitch);
                    sum.store(to < 0 ? entry : of_row, at, k, alpha, beta, PLAIN);
                }
                sum = {};
            }
        }
    }

    Part own = {};
    if (owns) own.load(entry, at, k);
    if (takes_from >= 0) sum.store(entry, at, k, alpha, beta, PLAIN);
    if (lane_id() == 0) taken_from[lane] = takes_from;
    __syncthreads();
    const uint32 others = __ballot_sync(FULL, lane_id() < L && taken_from[lane_id() % L] == lane);
    finish<UPDATE, TILE, L>(own, others, entries[0] + lane_id() * V, tail, cuts, m, chunk, before, after, lane, y, k, at, alpha,
                            beta, entry, taken_from);
}
