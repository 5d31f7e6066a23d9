// LSMR: a step's work on vectors, for any matrix and any number of columns. The recurrences, the estimates and the tests
// for the end are those of cvrarray/linalg/lsmr.py, which names their sources.
//
// A step is
//
//     u = A v - alpha u / |u|;  beta = |u|                   a product, lsmr_left
//     v = A^H u / beta - beta v;  alpha = |v|                a product, lsmr_right: the rotations, and estimates
//     v = v / alpha;  h_bar, x, h;  |x|                      lsmr_move: whether the column has ended
//
// Passes over vectors: 3 of rows, 3 + 7 of columns. Only the block that adds the blocks' sums writes a column's state.

#include "vectors.cuh"
#include "cg.cuh"
#include "methods.cuh"

struct Bidiagonal {
    double alpha, beta, length_u;  // length_u: what u is to be divided by
    double damp, norm_b, atol, btol, ctol;
    double alpha_bar, zeta_bar, zeta, rho, rho_bar, c_bar, s_bar;
    double beta_dd, beta_d, rho_d, tau, theta, d;  // of the residual's norm
    double norm_a2, norm_a, max_rho, min_rho, cond, norm_r, norm_x;
    double back, step, turn;  // factors of this step
    int64 iterations, limit, stop, going, moves;
};

__device__ inline double square(double a) { return a * a; }

// [[c, s], [-s, c]] @ [a, b] = [r, 0]
struct Rotation {
    double c, s, r;
    __device__ Rotation(double a, double b) : c(1), s(0), r(hypot(a, b)) {
        if (r > 0) c = a / r, s = b / r;
    }
};

// The rotations of a step, the factors of its vectors, and what they say of A and of the residual.
__device__ inline void rotate(Bidiagonal& l) {
    const Rotation hat(l.alpha_bar, l.damp), first(hat.r, l.beta);
    const double rho_old = l.rho, rho_bar_old = l.rho_bar, zeta_old = l.zeta;
    l.rho = first.r;
    const double theta = first.s * l.alpha, theta_bar = l.s_bar * l.rho, rho_temp = l.c_bar * l.rho;
    l.alpha_bar = first.c * l.alpha;
    const Rotation bar(rho_temp, theta);
    l.c_bar = bar.c, l.s_bar = bar.s, l.rho_bar = bar.r;
    l.zeta = bar.c * l.zeta_bar;
    l.zeta_bar *= -bar.s;
    l.back = over(theta_bar * l.rho, rho_old * rho_bar_old);
    l.step = over(l.zeta, l.rho * l.rho_bar);
    l.turn = over(theta, l.rho);

    const double acute = hat.c * l.beta_dd, check = -hat.s * l.beta_dd, theta_old = l.theta;
    l.beta_dd = -first.s * acute;
    const Rotation tilde(l.rho_d, theta_bar);
    l.theta = tilde.s * l.rho_bar;
    l.rho_d = tilde.c * l.rho_bar;
    l.beta_d = -tilde.s * l.beta_d + tilde.c * first.c * acute;
    l.tau = over(zeta_old - theta_old * l.tau, tilde.r);
    l.d += square(check);
    l.norm_r = sqrt(l.d + square(l.beta_d - over(l.zeta - l.theta * l.tau, l.rho_d)) + square(l.beta_dd));

    l.norm_a = sqrt(l.norm_a2 += square(l.beta));
    l.norm_a2 += square(l.alpha);
    l.max_rho = max(l.max_rho, rho_bar_old);
    if (l.iterations > 1) l.min_rho = min(l.min_rho, rho_bar_old);
    l.cond = over(max(l.max_rho, rho_temp), min(l.min_rho, rho_temp));
}

// SciPy's number of why the column has ended, 0 where it has not
__device__ inline int64 reason_to_stop(const Bidiagonal& l) {
    const double norm_ar = fabs(l.zeta_bar), below = l.norm_a * l.norm_r;
    const double of_r = over(l.norm_r, l.norm_b), size = l.norm_a * l.norm_x / l.norm_b;
    if (of_r <= l.btol + l.atol * size) return 1;
    if (below != 0 && norm_ar / below <= l.atol) return 2;
    if (1 / l.cond <= l.ctol) return 3;
    if (1 + of_r / (1 + size) <= 1) return 4;
    if (below != 0 && 1 + norm_ar / below <= 1) return 5;
    if (1 + 1 / l.cond <= 1) return 6;
    return is_finite(l.norm_r + norm_ar + l.norm_x) && l.iterations < l.limit ? 0 : 7;
}

// lsmr_left: u = product - alpha u / |u|, and beta
//
// traffic   3 vectors of rows
template <class Y>
__global__ __launch_bounds__(THREADS) void lsmr_left(const Shape shape, const Partials partials, Bidiagonal* column,
                                                     const Y* __restrict__ product, Y* __restrict__ u) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].going;
    const double factor = active ? -over(column[j].alpha, column[j].length_u) : 0;
    double sums[1] = {};
    const bool is_last = sums_of_rows<4>(shape, partials, active, sums, [&](int64, int64 at) {
        const Y entry = plus(product[at], factor, u[at]);
        u[at] = entry;
        sums[0] += dot(entry, entry);
    });
    if (!is_last) return;
    Bidiagonal& l = column[j];
    l.moves = l.going;
    if (!l.moves) return;
    l.iterations += 1;
    l.beta = l.length_u = sqrt(sums[0]);
}

// lsmr_right: v = product / beta - beta v, alpha, and the rotations
//
// traffic   3 vectors of columns
template <class Y>
__global__ __launch_bounds__(THREADS) void lsmr_right(const Shape shape, const Partials partials, Bidiagonal* column,
                                                      const Y* __restrict__ product, Y* __restrict__ v) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].moves;
    const double beta = active ? column[j].beta : 0, inverse = over(1, beta);
    double sums[1] = {};
    const bool is_last = sums_of_rows<4>(shape, partials, active, sums, [&](int64, int64 at) {
        const Y entry = plus(plus(Y{}, inverse, product[at]), -beta, v[at]);
        v[at] = entry;
        sums[0] += dot(entry, entry);
    });
    if (!is_last) return;
    Bidiagonal& l = column[j];
    if (!l.moves) return;
    l.alpha = l.beta > 0 ? sqrt(sums[0]) : 0;
    rotate(l);
}

// lsmr_move: v = v / alpha; h_bar = h - back h_bar; x += step h_bar; h = v - turn h; and the tests for the end
//
// traffic   7 vectors of columns
template <class Y>
__global__ __launch_bounds__(THREADS) void lsmr_move(const Shape shape, const Partials partials, Bidiagonal* column,
                                                     Y* __restrict__ v, Y* __restrict__ h_bar, Y* __restrict__ h,
                                                     Y* __restrict__ x) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].moves;
    const Bidiagonal now = active ? column[j] : Bidiagonal{};
    const double inverse = over(1, now.alpha);
    double sums[1] = {};
    const bool is_last = sums_of_rows<2>(shape, partials, active, sums, [&](int64, int64 at) {
        const Y direction = plus(Y{}, inverse, v[at]), before = h[at];
        const Y along = plus(before, -now.back, h_bar[at]), moved = plus(x[at], now.step, along);
        v[at] = direction;
        h_bar[at] = along;
        x[at] = moved;
        h[at] = plus(direction, -now.turn, before);
        sums[0] += dot(moved, moved);
    });
    if (!is_last) return;
    Bidiagonal& l = column[j];
    if (!l.moves) return;
    l.norm_x = sqrt(sums[0]);
    l.stop = reason_to_stop(l);
    l.going = l.stop == 0;
}
