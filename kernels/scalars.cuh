// Complex scalars of columns, in double precision whatever the vectors hold, and vectors times them.

__device__ inline bool is_zero(complex128 a) { return a.re == 0 && a.im == 0; }
__device__ inline bool is_finite(complex128 a) { return is_finite(a.re) && is_finite(a.im); }
__device__ inline complex128 negative(complex128 a) { return {-a.re, -a.im}; }
__device__ inline complex128 product(complex128 a, complex128 b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// a / b as R. L. Smith divides, without squares that overflow; 0 where b is 0
__device__ inline complex128 over(complex128 a, complex128 b) {
    if (is_zero(b)) return {0, 0};
    if (fabs(b.re) >= fabs(b.im)) {
        const double ratio = b.im / b.re, length = b.re + b.im * ratio;
        return {(a.re + a.im * ratio) / length, (a.im - a.re * ratio) / length};
    }
    const double ratio = b.re / b.im, length = b.re * ratio + b.im;
    return {(a.re * ratio + a.im) / length, (a.im * ratio - a.re) / length};
}

// y + a x
__device__ inline float plus(float y, complex128 a, float x) { return plus(y, a.re, x); }
__device__ inline double plus(double y, complex128 a, double x) { return plus(y, a.re, x); }
template <class T>
__device__ Complex<T> plus(Complex<T> y, complex128 a, Complex<T> x) {
    return a.im == 0 ? plus(y, a.re, x) : mac(Complex<T>{(T)a.re, (T)a.im}, x, y);
}
