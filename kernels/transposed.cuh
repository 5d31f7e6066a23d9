// Sums for y = A.T @ x whose bits do not depend on the order of their terms, though any warp may add to any column.
//
// A term p is put on a grid of integers, p ~ N * 2^unit, and N is added by integer atomics: these are exact, so their order
// cannot show. One unit serves all columns, LIMBS * P bits below a bound of every term's size (P = 63 - the bits of the
// longest column's length, so that no sum of limbs overflows). That loses what lies below 2^unit:
//
// * A term that is that small, and not a multiple of 2^unit, marks its column BAD. At the end a marked column whose sum is at
//   least 2^(FRACTION - 3) units is right all the same: n terms lose less than n units, within n * 8 eps * |sum|.
// * The other marked columns are COARSE: their largest term is found, and they are summed anew with a unit of their own.
//   These two passes end at once where no column is coarse, which is nearly always.
// * Terms that are inf or nan leave a mark of their kind.

template <class T>
struct Real {  // integers: sums modulo 2^64 are right as they are
    static constexpr int LIMBS = 1;
    static constexpr bool EXACT = true;
};
template <>
struct Real<float> {
    typedef uint32 Bits;
    static constexpr int FRACTION = 23, BIAS = 127, LIMBS = 1;
    static constexpr bool EXACT = false;
    static __device__ Bits bits(float p) { return __float_as_uint(p); }
};
template <>
struct Real<double> {
    typedef uint64 Bits;
    static constexpr int FRACTION = 52, BIAS = 1023, LIMBS = 2;
    static constexpr bool EXACT = false;
    static __device__ Bits bits(double p) { return (uint64)__double_as_longlong(p); }
};

template <class Y>
struct Components {
    typedef Y Part;
    static constexpr int N = 1;
    static __device__ Y get(Y value, int) { return value; }
    static __device__ void set(Y& value, int, Y part) { value = part; }
};
template <class T>
struct Components<Complex<T>> {
    typedef T Part;
    static constexpr int N = 2;
    static __device__ T get(Complex<T> value, int i) { return i ? value.im : value.re; }
    static __device__ void set(Complex<T>& value, int i, T part) { (i ? value.im : value.re) = part; }
};

// exponent field of a real's bits, all ones for inf and nan
template <class T>
__device__ int field(typename Real<T>::Bits bits) {
    return (int)(bits >> Real<T>::FRACTION) & (2 * Real<T>::BIAS + 1);
}

enum Pass { COUNT, ADD, EXPONENT, REFINE };
enum Mark { PLUS_INF = 1, MINUS_INF = 2, NOT_A_NUMBER = 4, KINDS = 3, BAD = 1 << 6, COARSE = 1 << 7 };  // KINDS bits a component

struct Matrix {  // what is known of the matrix's values and columns, all found on the device
    uint32 top;      // the largest exponent field of any finite value, + 1
    uint32 longest;  // entries of the longest column
};

struct Call {
    uint32 top;  // the largest exponent field in x, + 1
    uint32 n_coarse;
};

template <class Y>
struct Sums {
    typedef typename Components<Y>::Part Part;
    static constexpr int LIMBS = Real<Part>::LIMBS;

    const Matrix* matrix;
    Call* call;
    uint64* limbs;     // (n_cols, components, LIMBS)
    uint32* marks;     // (n_cols,)
    uint32* exponent;  // (n_cols,) of coarse columns: the largest exponent field of any term, + 1

    // bits that a limb holds
    __device__ int payload() const { return 31 + __clz(matrix->longest); }

    // the unit of a column whose terms all have an exponent field of at most `top`
    __device__ int unit_below(int top) const {
        typedef Real<Part> R;
        return max(top, 1) - R::BIAS + 1 - R::LIMBS * payload();
    }
    // 2 more for the product of two fractions, 1 for the sum of two products in a complex one
    __device__ int unit() const { return unit_below((int)matrix->top + (int)call->top - Real<Part>::BIAS + 1); }

    // adds one real term to a column; the marks that it leaves
    __device__ uint32 add_part(Part p, int64 col, int component, int unit, int payload) const {
        uint64* to = limbs + (col * Components<Y>::N + component) * LIMBS;
        if constexpr (Real<Part>::EXACT) {
            atomicAdd(to, (uint64)(int64)p);
            return 0;
        } else {
            typedef Real<Part> R;
            const auto bits = R::bits(p);
            const auto below_sign = bits << 1 >> 1;
            if (below_sign == 0) return 0;
            const bool negative = bits != below_sign;
            const int f = field<Part>(bits);
            uint64 n = bits & (((typename R::Bits)1 << R::FRACTION) - 1);
            if (f == 2 * R::BIAS + 1) return (n ? NOT_A_NUMBER : negative ? MINUS_INF : PLUS_INF) << component * KINDS;
            n |= (uint64)(f > 0) << R::FRACTION;
            const int up = max(f, 1) - R::BIAS - R::FRACTION - unit;
            uint32 mark = 0;
            uint64 low, high = 0;
            if (up < 0) {
                low = up > -64 ? n >> -up : 0;
                if (low < 1ull << (R::FRACTION - 3) && (up <= -64 || low << -up != n)) mark = BAD;
            } else {
                low = up < 64 ? n << up : 0;
            }
            if (R::LIMBS == 2) {
                if (up >= payload)
                    high = n << (up - payload);
                else if (up >= 0)
                    high = n >> (payload - up);
                else
                    high = low >> payload;
                low &= (1ull << payload) - 1;
                if (high) atomicAdd(to + 1, negative ? 0 - high : high);
            }
            if (low) atomicAdd(to, negative ? 0 - low : low);
            return mark;
        }
    }

    // what a pass does with one term; `unit` and `payload` are those of the whole matrix
    template <int PASS>
    __device__ void put(int64 col, Y p, int unit, int payload) const {
        if (PASS == COUNT) {
            atomicAdd(marks + col, 1u);
            return;
        }
        bool zero = true;  // adds nothing; and what hangs over the matrix's edge must not be looked up
        for (int i = 0; i < Components<Y>::N; ++i) zero &= Components<Y>::get(p, i) == Part(0);
        if (zero) return;
        if constexpr (!Real<Part>::EXACT) {
            if (PASS != ADD && !(marks[col] & COARSE)) return;
            if (PASS == EXPONENT) {
                for (int i = 0; i < Components<Y>::N; ++i) {
                    const Part part = Components<Y>::get(p, i);
                    const uint32 top = field<Part>(Real<Part>::bits(part)) + 1;
                    if (part != Part(0) && exponent[col] < top) atomicMax(exponent + col, top);
                }
                return;
            }
            if (PASS == REFINE) unit = unit_below((int)exponent[col] - 1);
        }
        uint32 mark = 0;
        for (int i = 0; i < Components<Y>::N; ++i) mark |= add_part(Components<Y>::get(p, i), col, i, unit, payload);
        if (mark && (marks[col] & mark) != mark) atomicOr(marks + col, mark);
    }

    // one real sum of a column, and whether it is at least 2^(FRACTION - 3) units
    __device__ Part total(int64 col, int component, int unit, int payload, bool& large) const {
        const uint64* from = limbs + (col * Components<Y>::N + component) * LIMBS;
        if constexpr (Real<Part>::EXACT) {
            return (Part)from[0];
        } else {
            typedef Real<Part> R;
            int64 low = (int64)from[0], high = 0;
            bool negative = low < 0;
            if (R::LIMBS == 2) {
                const int64 mask = ((int64)1 << payload) - 1;
                high = (int64)from[1] + (low >> payload);
                low &= mask;
                negative = high < 0;
                if (negative) {
                    high = -high - (low != 0);
                    low = -low & mask;
                }
            } else if (negative) {
                low = -low;
            }
            large |= high != 0 || (uint64)low >= 1ull << (R::FRACTION - 3);
            const double size = ldexp((double)high, payload + unit) + ldexp((double)(uint64)low, unit);
            return (Part)(negative ? -size : size);
        }
    }
};

// inf or nan where a column's terms were, else the sum
template <class T>
__device__ T with_specials(T sum, uint32 marks) {
    if constexpr (!Real<T>::EXACT) {
        const T inf = (T)__longlong_as_double(0x7ff0000000000000ll);
        if (marks & NOT_A_NUMBER || (marks & PLUS_INF && marks & MINUS_INF)) return inf - inf;
        if (marks & PLUS_INF) return inf;
        if (marks & MINUS_INF) return -inf;
    }
    return sum;
}

// largest_exponent: top = the largest exponent field of all finite numbers in `values`, as numbers of type Y, + 1
//
// mapping   a grid of threads strides over the values
// traffic   sizeof(A) a value
// races     a maximum of integers, taken atomically
template <class A, class Y>
__global__ void largest_exponent(const A* values, int64 n, uint32* top) {
    typedef typename Components<Y>::Part Part;
    uint32 largest = 0;
    if constexpr (!Real<Part>::EXACT)
        for (int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (int64)blockDim.x) {
            const Y value = Widen<Y, A>::from(values[i]);
            for (int part = 0; part < Components<Y>::N; ++part) {
                const int f = field<Part>(Real<Part>::bits(Components<Y>::get(value, part)));
                if (f < 2 * Real<Part>::BIAS + 1) largest = max(largest, (uint32)f + 1);
            }
        }
    largest = warp_max(largest);
    if (lane_id() == 0 && largest) atomicMax(top, largest);
}

// transposed_finish: y = alpha * sums + beta * y, for all columns that are not coarse; REFINE: for those
//
// mapping   one thread a column
// traffic   8 LIMBS bytes a component, 4 a column, and y
// races     the number of coarse columns is counted atomically
template <class Y, int PASS>
__global__ void transposed_finish(Sums<Y> sums, int64 n_cols, Y* y, Y alpha, Y beta, int update) {
    typedef typename Sums<Y>::Part Part;
    const int64 col = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (col >= n_cols || (PASS == REFINE && !sums.call->n_coarse)) return;
    const uint32 marks = sums.marks[col];
    int unit = 0, payload = 0;
    if constexpr (!Real<Part>::EXACT) {
        if (PASS == REFINE && !(marks & COARSE)) return;
        payload = sums.payload();
        unit = PASS == REFINE ? sums.unit_below((int)sums.exponent[col] - 1) : sums.unit();
    }
    Y value{};
    bool large = false;
    for (int i = 0; i < Components<Y>::N; ++i) {
        const Part sum = sums.total(col, i, unit, payload, large);
        Components<Y>::set(value, i, with_specials(sum, marks >> i * KINDS));
    }
    if (PASS == ADD && marks & BAD && !large && !(marks & (BAD - 1))) {
        sums.marks[col] = COARSE;
        for (int i = 0; i < Components<Y>::N * Sums<Y>::LIMBS; ++i) sums.limbs[col * Components<Y>::N * Sums<Y>::LIMBS + i] = 0;
        atomicAdd(&sums.call->n_coarse, 1u);
        return;
    }
    store(y + col, value, alpha, beta, update);
}

// longest_column: the largest of `count`
//
// mapping   a grid of threads strides over the columns
// races     a maximum of integers, taken atomically
__global__ void longest_column(const uint32* count, int64 n_cols, uint32* longest) {
    uint32 most = 0;
    for (int64 col = blockIdx.x * (int64)blockDim.x + threadIdx.x; col < n_cols; col += gridDim.x * (int64)blockDim.x)
        most = max(most, count[col]);
    most = warp_max(most);
    if (lane_id() == 0 && most) atomicMax(longest, most);
}
