// Y = alpha * A @ X + beta * Y for BBCSR with blocks of 1 and short rows, X (n_cols, k) and Y (n_rows, k) row-major, k
// small: see matrix.cuh for the groups. For sm_90 and later.

#include "values.cuh"
#include "bbcsr.cuh"
#include "matrix.cuh"
#include "copies.cuh"

constexpr int SHORT = 8;     // steps of a bin, at most
constexpr int PER_BLOCK = 8;  // warps

// the tables of a bin in shared memory, whose columns have up to so many bytes
template <class A, int COLUMN>
struct Tables {
    static constexpr int VALUES = SHORT * WARP * Values<A>::BYTES;
    alignas(16) char bytes[VALUES + SHORT * WARP * COLUMN];

    __device__ Stored<A>* slot() { return reinterpret_cast<Stored<A>*>(bytes); }
    template <class Column>
    __device__ Column* column() {
        return reinterpret_cast<Column*>(bytes + VALUES);
    }

    template <class I, class M>
    __device__ void fetch(const Bbcsr<A, I, M>& m, const Opened<A>& values, const Place<I>& place, uint64* barrier) {
        copy_tables<A>(slot(), column<char>(), m, values, place, barrier);
    }
};

// Adds the products of a row to the sum, where C is the type of its columns, `col` and `slot` point to the first.
template <class C, class A, class Y, int V, int STRIDE>
__device__ void add_short_row(const C* col, const Stored<A>* slot, const Opened<A>& values, const char* x, unsigned row_bytes,
                              Columns<Y, V, 1, STRIDE>& sum) {
    Columns<Y, V, 1, STRIDE> of_x[SHORT];
    unsigned c[SHORT];
#pragma unroll
    for (int step = 0; step < SHORT; ++step) {
        const Vector<Y, V>* row;
        c[step] = (unsigned)col[step * WARP];
        asm("" : "+r"(c[step]));  // all 32 bits from here on
        // padding loads the first row
        asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(row) : "r"(c[step] == PADDING<C> ? 0 : c[step]), "r"(row_bytes), "l"(x));
        of_x[step].vector[0] = cached(row);
    }
#pragma unroll
    for (int step = 0; step < SHORT; ++step)
        sum.add_product_unless(c[step] == PADDING<C>, values.template decoded<Y>(slot[step * WARP]), of_x[step]);
}

// the rows of Y that a lane has of a bin: every WARP / G of them
template <class Y>
struct Rows {
    Y* first;
    int64 at, k;
    int n;  // those before this one are there
    Y alpha, beta;
    int update;
};

// All rows of a bin of `n_steps` steps, with columns of type C.
template <class C, class A, class Y, int G, int V, int COLUMN>
__device__ void multiply_short(Tables<A, COLUMN>& tables, int n_steps, const Opened<A>& values, const char* x, unsigned row_bytes,
                               Rows<Y> rows) {
    C* const col = tables.template column<C>();
#pragma unroll 1
    for (int step = n_steps; step < SHORT; ++step) col[step * WARP + lane_id()] = C(-1);
    __syncwarp();
    const int group = lane_id() / G;
#pragma unroll 1
    for (int slot = 0; slot < WARP; slot += WARP / G, rows.first += WARP / G * rows.k) {
        Columns<Y, V, 1, G * V> sum[1] = {};
        if (n_steps)
            add_short_row<C, A>(col + slot + group, tables.slot() + slot + group, values, x, row_bytes, sum[0]);
        if (slot < rows.n) sum[0].store(rows.first, rows.at, rows.k, rows.alpha, rows.beta, rows.update);
    }
}

// bbcsr_matmat_short: all bins
//
// mapping   as many thread blocks as the device holds, each of PER_BLOCK warps, which take neighbouring bins, one each at a
//           time, and then those that are as many bins on as the grid has warps. Groups of G lanes hold V columns each of
//           WARP / G rows, in G turns. A row's vectors of X are under way together. The tables of a warp's next bin are
//           copied to shared memory meanwhile
// traffic   slot: sizeof(A) + (2 or sizeof(I)) bytes; a row of X for each nonzero; Y once
// requires  sm_90; bins of SHORT steps at most; col_narrow, col_wide and values aligned to 16 bytes; columns and bytes of a
//           row of X fit 32 bits; G * V columns are all; WIDE where a bin is
// races     none: a warp owns its rows, and its part of shared memory; it copies there after all its lanes have read
//
// Loads that a loop makes for its next turn are waited for with those of this one: the compiler has few counters for
// them. What is copied has a barrier of its own.
template <class A, class Y, class I, class M, int G, int V, bool WIDE>
__global__ __launch_bounds__(PER_BLOCK* WARP, 4) void bbcsr_matmat_short(
    const Bbcsr<A, I, M> m, int64 k, const Y* __restrict__ x, Y* __restrict__ y, Y alpha, Y beta, int update) {
    using OfBin = Tables<A, WIDE ? sizeof(I) : sizeof(uint16)>;
    __shared__ OfBin tables[PER_BLOCK][2];
    __shared__ uint64 barriers[PER_BLOCK][2];
    const Opened<A>& values = m.data.opened();
    int lane = lane_id();
    asm("" : "+r"(lane));  // kept, and not computed again for each use
    const int warp = threadIdx.x / WARP, group = lane / G;
    const int64 at = lane % G * V, stride = gridDim.x * (int64)PER_BLOCK;
    x += at < k ? at : 0;
    const unsigned row_bytes = (unsigned)(k * sizeof(Y));
    if (lane < 2) set_up(&barriers[warp][lane], 1);
    before_copies();
    __syncwarp();
    auto fetch = [&](const Place<I>& place, int half) {
        if (lane == 0 && place.n_slots >= 0) tables[warp][half].fetch(m, values, place, &barriers[warp][half]);
    };

    int64 bin = blockIdx.x * (int64)PER_BLOCK + warp;
    Place<I> place(m, bin), next(m, bin + stride);
    fetch(place, 0);
    unsigned parity = 0;  // of both halves, in turn
#pragma unroll 1
    for (int half = 0; place.n_slots >= 0; half ^= 1) {
        fetch(next, half ^ 1);
        const Place<I> then(m, bin + 2 * stride);
        OfBin& own = tables[warp][half];
        wait_for(&barriers[warp][half], parity >> half & 1);
        parity ^= 1u << half;
        const char* row_of_x = (const char*)(x + max(place.base, I(0)) * k);
        asm("" : "+l"(row_of_x));  // one pointer, not a sum for each load
        const int64 first = bin * WARP + group;
        const Rows<Y> rows = {y + first * k + at, at, k, at < k ? (int)min(m.n_rows - first, (int64)WARP) : 0, alpha, beta, update};
        if (!WIDE || place.is_narrow())
            multiply_short<uint16, A, Y, G, V>(own, place.n_slots / WARP, values, row_of_x, row_bytes, rows);
        else
            multiply_short<I, A, Y, G, V>(own, place.n_slots / WARP, values, row_of_x, row_bytes, rows);
        before_copies();  // padding that was stored
        __syncwarp();
        bin += stride;
        place = next;
        next = then;
    }
}
