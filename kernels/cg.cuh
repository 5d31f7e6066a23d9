// What the kernels of conjugate gradients share: scalars, which are doubles whatever the vectors hold, and when a
// column ends.
//
//   P   what the preconditioner is: enum Preconditioner

enum Preconditioner { IDENTITY, DIAGONAL, BLOCKS, GIVEN };  // GIVEN: z is computed by others

// Why a column is idle, if it is: cvrarray/linalg/ends.py has them in the same order. VERIFY: the residual that
// iterations update is small enough; CONVERGED: the true one is. START: the residual is there, and z is missing.
enum Reason { RUNNING, START, VERIFY, CONVERGED, MAXITER, STAGNATION, NOT_DEFINITE, M_NOT_DEFINITE, M_SINGULAR, A_NAN, M_NAN };

// A column's state: ten words of 8 bytes, as the host reads them
struct Column {
    double alpha, beta;  // of this iteration; alpha is 0 where the column is idle
    double nu, norm;  // r @ z and |r|
    double tolerance;  // for the norm of r; negative: run `limit` iterations and test nothing
    double last;  // norm of the true residual, when it was computed last
    int64 iterations, limit;
    int64 reason;
    double part;  // of `last`, below which the updated residual is tested against the true one
};

// ---------------------------------------------------------------------------------------------------- arithmetic

// y + a * x for a real number a
__device__ inline float plus(float y, double a, float x) { return mac((float)a, x, y); }
__device__ inline double plus(double y, double a, double x) { return mac(a, x, y); }
template <class T>
__device__ Complex<T> plus(Complex<T> y, double a, Complex<T> x) {
    return {plus(y.re, a, x.re), plus(y.im, a, x.im)};
}

// z = M r at (row, column), where M is none or diagonal; else `z` has it
template <int P, class Y>
__device__ Y preconditioned(const Y* inverse, int64 row, Y r, const Y* z, int64 at) {
    if constexpr (P == GIVEN || P == BLOCKS)
        return z[at];
    else
        return P == DIAGONAL ? mac(cached(inverse + row), r, Y{}) : r;
}

// a row of z = M r for the blocks of a block-diagonal M: the sum of `count` entries of the row, which are `apart`
// numbers apart, times those of r, `r_apart`
template <class Y>
__device__ Y block_row(const Y* row, int apart, const Y* r, int r_apart, int count) {
    constexpr int U = 3;  // entries that are loaded before the first is used
    Y z{};
    for (int from = 0; from < count; from += U) {
        Y left[U], right[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = from + u < count;
            left[u] = here ? row[(from + u) * apart] : Y{};
            right[u] = here ? r[(from + u) * r_apart] : Y{};
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (from + u < count) z = mac(left[u], right[u], z);
    }
    return z;
}

// the same for a row of SIZE entries and neighbouring ones of r
template <int SIZE, class Y>
__device__ Y whole_block_row(const Y* row, int apart, const Y* r) {
    Y left[SIZE + 1], right[SIZE + 1], z{};
#pragma unroll
    for (int u = 0; u < SIZE; ++u) left[u] = row[u * apart], right[u] = r[u];
#pragma unroll
    for (int u = 0; u < SIZE; ++u) z = mac(left[u], right[u], z);
    return z;
}

// -------------------------------------------------------------------------------------------------- when a column ends

constexpr double LEAST = 2.2250738585072014e-308;  // normal number

__device__ inline bool is_finite(double value) { return fabs(value) <= 1.7976931348623157e308; }

// 0 where b is 0, or too small for its reciprocal: no step, rather than one without end
__device__ inline double quotient(double a, double b) { return fabs(b) < LEAST ? 0 : a / b; }

// whether p @ A p is what a definite A gives
__device__ inline bool is_curved(double curvature) { return curvature >= LEAST && is_finite(curvature); }

// and if not why the column ends
__device__ inline int64 reason_of_curvature(const Column& c, double curvature) {
    if (c.tolerance < 0 || is_curved(curvature)) return RUNNING;
    return is_finite(curvature) ? NOT_DEFINITE : A_NAN;
}

// alpha, by p @ A p. Where there is no step to take it is 0, and the column has ended
__device__ inline void take_step(Column& c, double curvature) {
    c.reason = reason_of_curvature(c, curvature);
    c.alpha = c.reason == RUNNING ? quotient(c.nu, curvature) : 0;
}

// what r @ z and |r| say; `reason` where nothing is wrong
__device__ inline int64 reason_of(const Column& c, double nu, int64 reason) {
    if (c.tolerance < 0) return reason;
    if (!is_finite(c.norm)) return A_NAN;
    return !is_finite(nu) ? M_NAN : nu < 0 ? M_NOT_DEFINITE : nu == 0 ? M_SINGULAR : reason;
}

// of the norm of the updated residual: the true one is looked at there
__device__ inline double threshold(const Column& c) { return max(c.tolerance, c.part * c.last); }

// after an iteration, by the residual that it has updated
__device__ inline void end_iteration(Column& c, double nu, double rr, double* history) {
    c.norm = sqrt(rr);
    c.iterations += 1;
    if (history) *history = c.norm;
    if (c.tolerance >= 0 && c.norm <= threshold(c))
        c.reason = VERIFY;
    else
        c.reason = reason_of(c, nu, c.iterations >= c.limit ? MAXITER : RUNNING);
}

// A column whose true residual is known goes on, if it is not small enough: a column that begins, and one whose updated
// residual was too small. If that happens again and the true one is still more than half of what it was, nothing will
// help.
__device__ inline void judge(Column& c, double nu, double rr, int64 go_on) {
    c.norm = sqrt(rr);
    if (c.norm <= c.tolerance && is_finite(c.norm))
        c.reason = CONVERGED;
    else if (c.reason == VERIFY)
        c.reason = reason_of(c, nu, c.norm > 0.5 * c.last ? STAGNATION : c.iterations >= c.limit ? MAXITER : go_on);
    c.alpha = c.beta = 0;
    c.nu = nu;
    c.last = c.norm;
}
