// MINRES: a step's work on vectors, for any matrix and preconditioner, and any number of columns. The recurrences are
// those of cvrarray/linalg/minres.py.
//
// v is the Lanczos vector, `old`, `now` and y the last, this and the next one before their scaling. A step is
//
//     y = A v                                               the product
//     y -= beta / beta_old old;  alpha = v @ y              minres_project
//     y -= alpha / beta now;  z = M y;  beta = sqrt(y @ z)  minres_extend    (M given as an operator: M, minres_weigh)
//     w, x, r, v = z / beta;  |r|                           minres_move
//
// Passes over vectors: 4 + 3 + 10 without M. Only the block that adds the blocks' sums writes a column's state.

#include "vectors.cuh"
#include "cg.cuh"
#include "methods.cuh"

struct Lanczos {
    double alpha, beta, beta_old, epsilon, delta_bar, phi_bar, c, s;
    double of_v, of_w_old, of_w, of_x, of_r, of_y;  // factors of this step
    Course course;
};

// the rotation of this step, by y @ M y
__device__ inline void rotate(Lanczos& l, double square) {
    if (!is_finite(square)) return l.course.end(M_NAN);
    if (square < 0) return l.course.end(M_NOT_DEFINITE);
    const double beta = sqrt(square), epsilon_old = l.epsilon;
    const double delta = l.c * l.delta_bar + l.s * l.alpha, gamma_bar = l.s * l.delta_bar - l.c * l.alpha;
    const double gamma = sqrt(gamma_bar * gamma_bar + beta * beta);
    if (gamma == 0) return l.course.end(BREAKDOWN);
    l.epsilon = l.s * beta;
    l.delta_bar = -l.c * beta;
    l.c = gamma_bar / gamma;
    l.s = beta / gamma;
    l.of_x = l.c * l.phi_bar;
    l.phi_bar *= l.s;
    l.of_v = 1 / gamma;
    l.of_w_old = -epsilon_old / gamma;
    l.of_w = -delta / gamma;
    l.of_r = l.s * l.s;
    l.of_y = -l.c * over(l.phi_bar, beta);
    l.beta_old = l.beta;
    l.beta = beta;
}

// minres_project: y -= beta / beta_old old, and alpha
//
// traffic   4 vectors
template <class Y>
__global__ __launch_bounds__(THREADS) void minres_project(const Shape shape, const Partials partials, Lanczos* column,
                                                          const Y* __restrict__ v, const Y* __restrict__ old,
                                                          Y* __restrict__ y) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].course.goes_on();
    const double factor = active ? -over(column[j].beta, column[j].beta_old) : 0;
    double sums[1] = {};
    const bool is_last = sums_of_rows<4>(shape, partials, active, sums, [&](int64, int64 at) {
        const Y entry = plus(y[at], factor, old[at]);
        y[at] = entry;
        sums[0] += dot(v[at], entry);
    });
    if (!is_last) return;
    Lanczos& l = column[j];
    l.course.moves = l.course.goes_on();
    if (!l.course.moves) return;
    l.course.iterations += 1;
    l.alpha = sums[0];
    if (!is_finite(l.alpha)) l.course.end(A_NAN);
}

// minres_extend: y -= alpha / beta now, and the rotation, unless M is an operator
//
// traffic   3 vectors
template <class Y, int P>
__global__ __launch_bounds__(THREADS) void minres_extend(const Shape shape, const Partials partials, Lanczos* column,
                                                         const Y* __restrict__ inverse, const Y* __restrict__ now,
                                                         Y* __restrict__ y) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].course.moves;
    const double factor = active ? -over(column[j].alpha, column[j].beta) : 0;
    double sums[1] = {};
    const bool is_last = sums_of_rows<4>(shape, partials, active, sums, [&](int64 row, int64 at) {
        const Y entry = plus(y[at], factor, now[at]);
        y[at] = entry;
        if (P != GIVEN) sums[0] += dot(entry, preconditioned<P>(inverse, row, entry, now, at));
    });
    if (P == GIVEN || !is_last) return;
    if (column[j].course.moves) rotate(column[j], sums[0]);
}

// minres_weigh: the rotation, by z = M y of others
//
// traffic   2 vectors
template <class Y>
__global__ __launch_bounds__(THREADS) void minres_weigh(const Shape shape, const Partials partials, Lanczos* column,
                                                        const Y* __restrict__ y, const Y* __restrict__ z) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].course.moves;
    double sums[1] = {};
    if (!sums_of_rows<4>(shape, partials, active, sums, [&](int64, int64 at) { sums[0] += dot(y[at], z[at]); })) return;
    if (column[j].course.moves) rotate(column[j], sums[0]);
}

// minres_move: the new w in the place of the last but one, x, r, and the next v; whether the column has ended
//
// traffic   10 vectors, without M
template <class Y, int P>
__global__ __launch_bounds__(THREADS) void minres_move(const Shape shape, const Partials partials, Lanczos* column,
                                                       const Y* __restrict__ inverse, const Y* __restrict__ y,
                                                       const Y* __restrict__ z, const Y* __restrict__ w,
                                                       Y* __restrict__ w_old, Y* __restrict__ v, Y* __restrict__ x,
                                                       Y* __restrict__ r) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].course.moves;
    const Lanczos step = active ? column[j] : Lanczos{};
    const double of_z = over(1, step.beta);
    double sums[1] = {};
    const bool is_last = sums_of_rows<2>(shape, partials, active, sums, [&](int64 row, int64 at) {
        const Y next = y[at];
        const Y direction = plus(plus(plus(Y{}, step.of_w_old, w_old[at]), step.of_w, w[at]), step.of_v, v[at]);
        const Y residual = plus(plus(Y{}, step.of_y, next), step.of_r, r[at]);
        w_old[at] = direction;
        x[at] = plus(x[at], step.of_x, direction);
        r[at] = residual;
        v[at] = plus(Y{}, of_z, preconditioned<P>(inverse, row, next, z, at));
        sums[0] += dot(residual, residual);
    });
    if (!is_last) return;
    Lanczos& l = column[j];
    if (!l.course.moves) return;
    l.course.norm = sqrt(sums[0]);
    if (!is_finite(l.course.norm))
        l.course.end(A_NAN);
    else if (l.course.norm <= l.course.verify_at)
        l.course.end(VERIFY);
    else if (l.beta == 0)  // the Krylov space is exhausted, and the residual is not 0
        l.course.end(BREAKDOWN);
}
