// BiCGSTAB: a step's work on vectors, for any matrix and preconditioner, and any number of columns. The recurrences are
// those of cvrarray/linalg/bicgstab.py.
//
// A step is, with p^ = M p and s^ = M r,
//
//     v = A p^                                              a product
//     alpha = rho / shadow @ v                              bicgstab_project
//     x += alpha p^;  r -= alpha v                          bicgstab_half
//     t = A s^                                              a product
//     omega = t @ r / t @ t                                 bicgstab_weigh
//     x += omega s^;  r -= omega t;  |r|, rho, beta         bicgstab_whole
//     p = r + beta (p - omega v)                            bicgstab_turn; keeps x where it is much better
//
// Without M p^ is p and s^ is r; a diagonal one is applied where p and r are made. Passes over vectors without M: 3 +
// 6 + 2 + 7 + 4. Only the block that adds the blocks' sums writes a column's state.

#include "vectors.cuh"
#include "cg.cuh"
#include "scalars.cuh"
#include "methods.cuh"

constexpr double BETTER = 0.1;  // of the kept iterate's residual, as in cvrarray/linalg/bicgstab.py

// Scalars are complex whatever the vectors hold.
struct Stabilised {
    complex128 rho, alpha, omega, beta;
    double shadow_norm, least;  // of |rho|, over the norms of the shadow residual and of the residual
    double best;                // the norm of the residual of the iterate that is kept
    int64 keeps;                // whether this step's is
    Course course;
};

// bicgstab_project: alpha
//
// traffic   3 vectors
template <class Y>
__global__ __launch_bounds__(THREADS) void bicgstab_project(const Shape shape, const Partials partials, Stabilised* column,
                                                            const Y* __restrict__ shadow, const Y* __restrict__ v,
                                                            const Y* __restrict__ p_hat) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].course.goes_on();
    double sums[3] = {};
    const bool is_last = sums_of_rows<4>(shape, partials, active, sums, [&](int64, int64 at) {
        const Y direction = p_hat[at];
        add_product(sums, shadow[at], v[at]);
        sums[2] += dot(direction, direction);
    });
    if (!is_last) return;
    Stabilised& s = column[j];
    s.course.moves = s.course.goes_on();
    if (!s.course.moves) return;
    s.course.iterations += 1;
    const complex128 bend = {sums[0], sums[1]};
    if (!is_finite(sums[2])) return s.course.end(M_NAN);
    if (!is_finite(bend)) return s.course.end(A_NAN);
    if (is_zero(bend)) return s.course.end(BREAKDOWN);
    s.alpha = over(s.rho, bend);
}

// bicgstab_half: x += alpha p^, r -= alpha v, and s^ of a diagonal M
//
// traffic   6 vectors, without M
template <class Y, int P>
__global__ __launch_bounds__(THREADS) void bicgstab_half(const Shape shape, const Stabilised* column, const Y* inverse,
                                                         const Y* p_hat, const Y* v, Y* x, Y* r, Y* s_hat) {
    if (!shape.has_column()) return;
    const int64 j = shape.column();
    if (!column[j].course.moves) return;
    const complex128 alpha = column[j].alpha, back = negative(alpha);
#pragma unroll 2
    for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
        const int64 at = row * shape.k + j;
        const Y residual = plus(r[at], back, v[at]);
        x[at] = plus(x[at], alpha, p_hat[at]);
        r[at] = residual;
        if (P == DIAGONAL) s_hat[at] = mac(cached(inverse + row), residual, Y{});
    }
}

// bicgstab_weigh: omega
//
// traffic   2 vectors
template <class Y>
__global__ __launch_bounds__(THREADS) void bicgstab_weigh(const Shape shape, const Partials partials, Stabilised* column,
                                                          const Y* __restrict__ t, const Y* __restrict__ r) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].course.moves;
    double sums[3] = {};
    const bool is_last = sums_of_rows<4>(shape, partials, active, sums, [&](int64, int64 at) {
        const Y entry = t[at];
        add_product(sums, entry, r[at]);
        sums[2] += dot(entry, entry);
    });
    if (!is_last) return;
    if (column[j].course.moves) column[j].omega = {over(sums[0], sums[2]), over(sums[1], sums[2])};
}

// bicgstab_whole: x += omega s^, r -= omega t, the next rho and beta, and whether the column has ended
//
// traffic   7 vectors; without M 6, as s^ is r
template <class Y>
__global__ __launch_bounds__(THREADS) void bicgstab_whole(const Shape shape, const Partials partials, Stabilised* column,
                                                          const Y* shadow, const Y* s_hat, const Y* t, Y* x, Y* r) {
    const int64 j = shape.column();
    const bool active = shape.has_column() && column[j].course.moves;
    const complex128 omega = active ? column[j].omega : complex128{}, back = negative(omega);
    double sums[3] = {};
    const bool is_last = sums_of_rows<2>(shape, partials, active, sums, [&](int64, int64 at) {
        const Y direction = s_hat[at], residual = plus(r[at], back, t[at]);
        x[at] = plus(x[at], omega, direction);
        r[at] = residual;
        add_product(sums, shadow[at], residual);
        sums[2] += dot(residual, residual);
    });
    if (!is_last) return;
    Stabilised& s = column[j];
    if (!s.course.moves) return;
    const complex128 rho = {sums[0], sums[1]};
    const double norm = sqrt(sums[2]);
    s.course.norm = norm;
    s.beta = product(over(rho, s.rho), over(s.alpha, s.omega));
    s.rho = rho;
    if (!is_finite(norm)) return s.course.end(A_NAN);
    if (norm <= s.course.verify_at) return s.course.end(VERIFY);
    const bool is_small = hypot(rho.re, rho.im) <= s.least * s.shadow_norm * norm;
    s.keeps = norm < BETTER * s.best;
    if (s.keeps) s.best = norm;
    if (norm > 0 && (is_small || is_zero(s.omega))) s.course.end(BREAKDOWN);  // the next step would
}

// bicgstab_turn: p = r + beta (p - omega v), and p^ of a diagonal M; x is kept where it is much better than what was
//
// traffic   4 vectors, without M; 2 more where x is kept
template <class Y, int P>
__global__ __launch_bounds__(THREADS) void bicgstab_turn(const Shape shape, const Stabilised* column, const Y* inverse,
                                                         const Y* r, const Y* v, Y* p, Y* p_hat, const Y* x, Y* kept) {
    if (!shape.has_column()) return;
    const int64 j = shape.column();
    if (!column[j].course.moves) return;
    const complex128 beta = column[j].beta, back = negative(column[j].omega);
    const bool keeps = column[j].keeps;
#pragma unroll 2
    for (int64 row = shape.first_row(); row < shape.n; row += shape.stride()) {
        const int64 at = row * shape.k + j;
        const Y direction = plus(r[at], beta, plus(p[at], back, v[at]));
        p[at] = direction;
        if (P == DIAGONAL) p_hat[at] = mac(cached(inverse + row), direction, Y{});
        if (keeps) kept[at] = x[at];
    }
}
