// Conjugate gradients: an iteration's work on vectors, for any matrix and preconditioner, and any number of columns.
//
// After M. R. Hestenes, E. Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems", 1952. An iteration is
//
//     q = A p                                        the product
//     alpha = r @ z / p @ q                          cg_curvature
//     r -= alpha q;  z = M r;  beta = r @ z / before cg_step        (M given as an operator: cg_step, M, cg_weight)
//     x += alpha p;  p = z + beta p                  cg_turn
//
// Passes over vectors: 2 + 4 + 6 with a diagonal M, whose z is computed where it is needed. x waits for cg_turn, which
// reads p in any case. Where blocks can wait for each other and M is none of the user's, cg_advance does all three.
//
// Only the block that adds the blocks' sums, when all are there, writes a column's state.
//
// A column that has ended has alpha 0, from the next cg_curvature on, and its vectors stay as they are.
//
// STACK: each column is a system of its own, as StackShape has them

#include "vectors.cuh"
#include "cg.cuh"
#include "exchange.cuh"

// The entry of z = M r at (row, column), for `r` of this thread's, and the sums of r @ z and r @ r. All threads of the
// block must call it; `is_here` where there is such an entry.
template <int P, class SHAPE, class Y>
__device__ Y weigh(const SHAPE& shape, const Y* inverse, int size, int64 row, bool is_here, Y r, Y* z, double (&sums)[2]) {
    Y entry = r;
    if constexpr (P == BLOCKS) {  // a thread block has whole blocks of M
        extern __shared__ uint4 memory[];
        Y* shared = reinterpret_cast<Y*>(memory);
        __syncthreads();
        shared[threadIdx.x] = r;
        __syncthreads();
        if (is_here) {
            const int64 begin = row / size * size, count = min((int64)size, shape.n - begin);
            const int first = threadIdx.x - (int)(row - begin) * shape.columns;
            entry = block_row(inverse + shape.inverse_row(row) * size, 1, shared + first, shape.columns, (int)count);
        }
    } else if (is_here) {
        entry = P == DIAGONAL ? mac(cached(inverse + shape.inverse_row(row)), r, Y{}) : r;
    }
    if (is_here) {
        if (P == BLOCKS) z[shape.at(row)] = entry;
        if (P != GIVEN) sums[0] += dot(r, entry);
        sums[1] += dot(r, r);
    }
    return entry;
}

// the entry of b - q, over the column's scale if it has one
template <class Y, class W>
__device__ Y residual(W b, W q, const double* scale, int64 column) {
    if constexpr (sizeof(W) == sizeof(Y))
        return plus(b, -1, q);
    else
        return Widen<Y, W>::from(plus(W{}, 1 / scale[column], plus(b, -1, q)));
}

// cg_residual: r = b - q, and z, r @ z and r @ r of it, for columns that begin (`first`) or that seem to be done. Where
// b and q are in double precision and r is not, r is in units of `scale`.
//
// p = z; where `turns`, p goes on with the z of the new r instead of that of the old one
//
// traffic   5 vectors, with a diagonal M
// requires  q = A x
template <class W, class Y, int P, bool STACK>
__global__ __launch_bounds__(THREADS) void cg_residual(const typename Shapes<STACK>::Of shape, const Partials partials, Column* column,
                                                       const Y* __restrict__ inverse, int size, const W* __restrict__ b,
                                                       const W* __restrict__ q, Y* __restrict__ r, Y* __restrict__ z,
                                                       Y* __restrict__ p, const double* scale, const double* tolerance,
                                                       double part, int64 limit, bool first, bool turns, double* history) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && (first || column[j].reason != RUNNING);
    double sums[2] = {};
    for (int64 base = blockIdx.x * (int64)shape.rows; base < shape.n; base += shape.stride()) {
        const int64 row = base + shape.row_of_thread(), at = shape.at(row);
        const bool is_here = active && row < shape.n;
        Y entry{}, direction{};  // what is left of p
        if (is_here) {
            if (turns) direction = plus(p[at], -1, preconditioned<P>(inverse, shape.inverse_row(row), r[at], z, at));
            r[at] = entry = residual<Y>(b[at], q[at], scale, j);
        }
        entry = weigh<P>(shape, inverse, size, row, is_here, entry, z, sums);
        if (is_here) p[at] = P == GIVEN ? direction : add(direction, entry);
    }
    if (!grid_sums(shape, partials, sums)) return;
    Column& c = column[j];
    if (first) {
        c.tolerance = tolerance[j];
        c.limit = limit;
        c.iterations = 0;
        c.last = 1 / 0.;
        c.part = part;
        c.reason = VERIFY;  // until it is judged
    }
    if (c.reason == RUNNING) return;
    if (P == GIVEN)
        judge(c, 1, sums[1], START);
    else
        judge(c, sums[0], sums[1], RUNNING);
    if (first && history) history[j] = c.norm;
}

// cg_collect: x += scale y; y = 0, for a y in single precision
//
// traffic   4 vectors
template <class W, class Y>
__global__ __launch_bounds__(THREADS) void cg_collect(const Shape shape, const double* scale, Y* __restrict__ y,
                                                      W* __restrict__ x) {
    if (!shape.has_column()) return;
    const int64 j = shape.column();
    const double unit = scale[j];
    for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
        const int64 at = row * shape.k + j;
        x[at] = plus(x[at], unit, Widen<W, Y>::from(y[at]));
        y[at] = Y{};
    }
}

// cg_curvature: alpha
//
// traffic   2 vectors
template <class Y, bool STACK>
__global__ __launch_bounds__(THREADS) void cg_curvature(const typename Shapes<STACK>::Of shape, const Partials partials, Column* column,
                                                        const Y* __restrict__ p, const Y* __restrict__ q) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].reason == RUNNING;
    double sums[1] = {};
    if (!sums_of_rows<4>(shape, partials, active, sums, [&](int64, int64 at) { sums[0] += dot(p[at], q[at]); })) return;
    Column& c = column[j];
    c.alpha = 0;
    if (c.reason == RUNNING) take_step(c, sums[0]);
}

// cg_step: r -= alpha q, then z, beta, and whether the column has ended
//
// traffic   4 vectors, with a diagonal M
template <class Y, int P, bool STACK>
__global__ __launch_bounds__(THREADS) void cg_step(const typename Shapes<STACK>::Of shape, const Partials partials, Column* column,
                                                   const Y* __restrict__ inverse, int size, const Y* __restrict__ q,
                                                   Y* __restrict__ r, Y* __restrict__ z, double* history) {
    const int64 j = shape.column();
    const double alpha = shape.has_column() ? column[j].alpha : 0;
    double sums[2] = {};
#pragma unroll 2
    for (int64 base = blockIdx.x * (int64)shape.rows; base < shape.n; base += shape.stride()) {
        const int64 row = base + shape.row_of_thread(), at = shape.at(row);
        const bool is_here = alpha != 0 && row < shape.n;
        Y entry{};
        if (is_here) r[at] = entry = plus(r[at], -alpha, q[at]);
        weigh<P>(shape, inverse, size, row, is_here, entry, z, sums);
    }
    if (!grid_sums(shape, partials, sums)) return;
    Column& c = column[j];
    if (c.alpha == 0) return;
    end_iteration(c, P == GIVEN ? 1 : sums[0], sums[1], history ? history + (c.iterations + 1) * shape.k + j : nullptr);
    if (P == GIVEN) return;
    c.beta = quotient(sums[0], c.nu);
    c.nu = sums[0];
}

// cg_weigh: r @ z for z = M r by others, and beta; p += z for columns that begin
//
// traffic   2 vectors
template <class Y, bool STACK>
__global__ __launch_bounds__(THREADS) void cg_weigh(const typename Shapes<STACK>::Of shape, const Partials partials, Column* column,
                                                    const Y* __restrict__ r, const Y* __restrict__ z, Y* __restrict__ p) {
    const int64 j = shape.column();
    const bool begins = shape.has_column() && column[j].reason == START;
    const bool active = begins || (shape.has_column() && column[j].alpha != 0);
    double sums[1] = {};
    const bool is_last = sums_of_rows<4>(shape, partials, active, sums, [&](int64, int64 at) {
        const Y entry = z[at];
        sums[0] += dot(r[at], entry);
        if (begins) p[at] = add(p[at], entry);
    });
    if (!is_last) return;
    Column& c = column[j];
    if (!begins && c.alpha == 0) return;
    if (begins || c.reason == RUNNING) c.reason = reason_of(c, sums[0], RUNNING);
    c.beta = begins ? 0 : quotient(sums[0], c.nu);
    c.nu = sums[0];
}

// cg_turn: x += alpha p, p = z + beta p
//
// traffic   6 vectors, with a diagonal M
template <class Y, int P, bool STACK>
__global__ __launch_bounds__(THREADS) void cg_turn(const typename Shapes<STACK>::Of shape, const Column* __restrict__ column,
                                                   const Y* __restrict__ inverse, const Y* __restrict__ r,
                                                   const Y* __restrict__ z, Y* __restrict__ x, Y* __restrict__ p) {
    if (!shape.has_column()) return;
    const int64 j = shape.column();
    const double alpha = column[j].alpha, beta = column[j].beta;
    if (alpha == 0) return;
#pragma unroll 2
    for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
        const int64 at = shape.at(row);
        const Y direction = p[at];
        const Y entry = preconditioned<P>(inverse, shape.inverse_row(row), r[at], z, at);
        x[at] = plus(x[at], alpha, direction);
        p[at] = plus(entry, beta, direction);
    }
}

// ------------------------------------------------------------------------------------------------ all of it in a launch

constexpr int MANY = 1024, MOST_COLUMNS = 128;  // threads of a block of cg_advance, and columns of its vectors

struct ColumnSums {
    double of_rows[2 * (MANY + MOST_COLUMNS)], total[2 * MOST_COLUMNS];
};

// shared.total (N, columns): the sums over all blocks of each column's N values, in a fixed order. All threads must call
// it. `words` are (N, columns, blocks), of the other mark before.
template <int N>
__device__ void exchange_sums(const Shape& shape, ColumnSums& shared, double* words, uint32 mark, double (&value)[N]) {
    constexpr int WARPS = MANY / WARP;
    const int warp = threadIdx.x / WARP, lane = lane_id(), row = shape.row_of_thread();
    const bool is_vector = shape.columns == 1;
    const int count = is_vector ? WARPS : shape.rows, apart = count | 1;  // odd: no two lanes in a bank
    __syncthreads();  // the last totals are read
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const double entry = is_vector ? warp_sum(value[i]) : value[i];
        const int column = i * shape.columns + threadIdx.x % shape.columns;
        if (is_vector ? lane == 0 : row < shape.rows) shared.of_rows[column * apart + (is_vector ? warp : row)] = entry;
    }
    __syncthreads();
    for (int i = warp; i < N * shape.columns; i += WARPS) {
        double sum = 0;
        for (int of = lane; of < count; of += WARP) sum += shared.of_rows[i * apart + of];
        sum = warp_sum(sum);
        if (lane == 0) tell(words + i * (int64)gridDim.x + blockIdx.x, marked(sum, mark));
    }
    if (warp < N * shape.columns) pause(FIRST_LOOK);
    for (int i = warp; i < N * shape.columns; i += WARPS) {
        const double total = warp_sum(awaited_share(words + i * (int64)gridDim.x, gridDim.x, mark));
        if (lane == 0) shared.total[i] = total;
    }
    __syncthreads();
}

// cg_advance: what cg_curvature, cg_step and cg_turn do, with every block waiting for all sums
//
// mapping   as vectors.cuh says, with MANY threads a block, one block a multiprocessor, one tile of columns
// traffic   8 vectors with a diagonal M: q, or z, of a thread's first `n_kept` rows stay in shared memory; 10 of the
//           other rows
// requires  a cooperative launch; `words` hold 3 numbers a block and column, and a mark a block, all 0 before the first
//           launch; MANY vectors' entries (P == BLOCKS), the columns, and the rows kept fit shared memory
// races     none: a thread owns its entries; columns are read before the first sum and written after the second, by
//           one block
template <class Y, int P>
__global__ __launch_bounds__(MANY, 1) void cg_advance(const Shape shape, double* words, uint32* marks, Column* column,
                                                      const Y* __restrict__ inverse, int size, int n_kept,
                                                      const Y* __restrict__ q, Y* __restrict__ r, Y* __restrict__ z,
                                                      Y* __restrict__ x, Y* __restrict__ p, double* history) {
    constexpr int U = sizeof(Y) <= 8 ? 4 : 2;  // rows that are loaded before the first is used
    extern __shared__ uint4 memory[];  // of weigh(); then the rows kept, and the columns
    __shared__ ColumnSums shared;
    Y* const kept = reinterpret_cast<Y*>(memory) + (P == BLOCKS ? MANY : 0) + threadIdx.x;
    Column* const columns = reinterpret_cast<Column*>(reinterpret_cast<Y*>(memory) + MANY * ((P == BLOCKS) + n_kept));
    const int64 j = shape.column();
    const bool is_first = threadIdx.x < shape.columns;  // of the column's threads
    const bool active = shape.has_column() && column[j].reason == RUNNING;
    if (!__syncthreads_or(active)) return;
    if (is_first) {
        columns[j] = column[j];
        columns[j].alpha = columns[j].beta = 0;
    }
    const uint32 mark = marks[blockIdx.x] ^ 1;

    // What is read last is read first next, as it may still be in L2: the product ends with the last rows
    const int64 first_row = shape.first_row(), stride = shape.stride();
    const int rounds = (int)((shape.n - blockIdx.x * (int64)shape.rows + stride - 1) / stride), groups = (rounds + U - 1) / U;
    double curvature[1] = {};
    if (active) {
        for (int i = (groups - 1) * U; i >= 0; i -= U) {
            Y direction[U], product[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const int64 row = first_row + (i + u) * stride, at = row * shape.k + j;
                const bool is_here = row < shape.n;
                direction[u] = is_here ? p[at] : Y{};
                product[u] = is_here ? q[at] : Y{};
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                curvature[0] += dot(direction[u], product[u]);
                if (i + u < n_kept) kept[(i + u) * MANY] = product[u];
            }
        }
    }
    exchange_sums(shape, shared, words, mark, curvature);
    if (is_first && active) take_step(columns[j], shared.total[j]);
    __syncthreads();

    const double alpha = shape.has_column() ? columns[j].alpha : 0;
    double sums[2] = {};
    if constexpr (P == BLOCKS) {
        for (int round = 0; round < rounds; ++round) {
            const int64 row = first_row + round * stride, at = row * shape.k + j;
            const bool is_here = alpha != 0 && row < shape.n;
            Y entry{};
            if (is_here) r[at] = entry = plus(r[at], -alpha, round < n_kept ? kept[round * MANY] : q[at]);
            entry = weigh<P>(shape, inverse, size, row, is_here, entry, z, sums);
            if (is_here && round < n_kept) kept[round * MANY] = entry;
        }
    } else if (alpha != 0) {
        for (int group = 0; group < groups; ++group) {
            const int i = group * U;
            Y before[U], product[U], scale[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const int64 row = first_row + (i + u) * stride, at = row * shape.k + j;
                const bool is_here = row < shape.n;
                before[u] = is_here ? r[at] : Y{};
                product[u] = i + u < n_kept ? kept[(i + u) * MANY] : is_here ? q[at] : Y{};
                scale[u] = P == DIAGONAL && is_here ? cached(inverse + row) : Y{};
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const int64 row = first_row + (i + u) * stride;
                if (row >= shape.n) continue;
                const Y after = plus(before[u], -alpha, product[u]);
                const Y entry = P == DIAGONAL ? mac(scale[u], after, Y{}) : after;
                r[row * shape.k + j] = after;
                sums[0] += dot(after, entry);
                sums[1] += dot(after, after);
                if (i + u < n_kept) kept[(i + u) * MANY] = entry;
            }
        }
    }
    exchange_sums(shape, shared, words + gridDim.x * (int64)shape.columns, mark, sums);
    if (is_first && active) {
        Column& c = columns[j];
        if (alpha != 0) {
            const bool tells = history && blockIdx.x == 0;
            const double nu = shared.total[j];
            end_iteration(c, nu, shared.total[shape.columns + j], tells ? history + (c.iterations + 1) * shape.k + j : nullptr);
            c.beta = quotient(nu, c.nu);
            c.nu = nu;
        }
        if (blockIdx.x == 0) column[j] = c;
    }
    if (threadIdx.x == 0) marks[blockIdx.x] = mark;
    __syncthreads();
    if (alpha == 0) return;

    const double beta = columns[j].beta;
    for (int group = 0; group < groups; ++group) {
        const int i = (groups - 1 - group) * U;
        Y direction[U], entry[U], so_far[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 row = first_row + (i + u) * stride, at = row * shape.k + j;
            if (row >= shape.n) continue;
            direction[u] = p[at];
            so_far[u] = x[at];
            entry[u] = i + u < n_kept ? kept[(i + u) * MANY] : preconditioned<P>(inverse, row, r[at], z, at);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 row = first_row + (i + u) * stride, at = row * shape.k + j;
            if (row >= shape.n) continue;
            x[at] = plus(so_far[u], alpha, direction[u]);
            p[at] = plus(entry[u], beta, direction[u]);
        }
    }
}
