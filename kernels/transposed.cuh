// Sums for y = A.T @ x whose bits do not depend on the order of their terms, though any warp may add to any column.
//
// Fixed point: a term p is rounded to N * 2^unit, and the integers N are added by atomics. Integer sums are exact, so
// their order cannot show. One unit serves all columns. It follows from a bound on every term: the largest |a_ij| times
// the largest |x_i|. A column's sum is held, with h the bits that count the entries of the longest column, in
//
//   float     one 64-bit integer: 63 - h bits below the bound
//   double    FLOATS: four floats that hold integers up to 2^24, added by one instruction: 4 (25 - h) - 1 bits, where
//             h <= 8 and on sm_90 or newer; else two 64-bit integers, which neighbouring lanes add together: 2 (63 - h)
//
// and what a term has below the unit, its rest, is added to a further integer (`fine`) of 63 - h bits. Most terms have
// none.
//
// The error. Let F be FRACTION, so that eps = 2^-F. A term is lossless unless its rest has bits below the fine unit,
// which is the unit of the last integer in use; then it loses at most half of that, and marks its column BAD. At the
// end
//
// * a BAD column whose sum is at least 2^F such units is right all the same: n terms lose at most n / 2 units, which is
//   at most n eps / 2 |sum|. With the rounding of products and of the sum that is less than (n + 2) eps |A|^T |x|,
//   whatever the range of x.
// * the other BAD columns are COARSE: two more passes over the matrix find the largest term of each, and sum them anew
//   with a unit that follows from that. Such columns exist only where terms differ by 10^20 or more (by less where
//   columns have 10^6 entries).
//
// Terms that are inf or nan leave a mark of their kind.
//
// Sums and marks are 0 before a product, which clears them where it reads them last.

template <class T>
struct Real {  // integers: sums modulo 2^64 are right as they are
    static constexpr int LIMBS = 1;
    static constexpr bool EXACT = true;
};
template <>
struct Real<float> {
    static constexpr int FRACTION = 23, BIAS = 127, LIMBS = 1;
    static constexpr bool EXACT = false;
    static __device__ int field(float p) { return (int)(__float_as_uint(p) >> FRACTION) & (2 * BIAS + 1); }
    // conversions and a comparison that keep denormals: see mac()
    static __device__ double widened(float p) {
        double wide;
        asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(p));
        return wide;
    }
    // the integer of its FRACTION + 1 bits, for a number that is normal
    static __device__ int64 bits(float p) { return (__float_as_uint(p) & 0x7fffff) | 0x800000; }
    static __device__ float rounded(double p) {
        float narrow;
        asm("cvt.rn.f32.f64 %0, %1;" : "=f"(narrow) : "d"(p));
        return narrow;
    }
};
template <>
struct Real<double> {
    static constexpr int FRACTION = 52, BIAS = 1023, LIMBS = 2;
    static constexpr bool EXACT = false;
    static __device__ int field(double p) { return (int)(__double_as_longlong(p) >> FRACTION) & (2 * BIAS + 1); }
    static __device__ double widened(double p) { return p; }
    static __device__ double rounded(double p) { return p; }
};

template <class T>
__device__ bool is_zero(T p) {
    return p == T(0);
}
template <>
__device__ bool is_zero(float p) {
    return !(__float_as_uint(p) << 1);
}

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

// 2^exponent, from 2^-1022 to 2^1023
__device__ inline double power_of_two(int exponent) {
    return __longlong_as_double((int64)(min(max(exponent, -1022), 1023) + 1023) << 52);
}

// 2^-unit, as two factors: one would not reach all units of doubles
struct Scale {
    double by = 1, and_by = 1;

    __device__ explicit Scale(int unit = 0) : by(power_of_two(-unit / 2)), and_by(power_of_two(-unit - -unit / 2)) {}
    __device__ double of(double p) const { return p * by * and_by; }
};

// a sum's words, past L1: atomics have written them
__device__ inline void load_words(uint64 (&words)[1], const uint64* from) { words[0] = fresh(from); }
__device__ inline void load_words(uint64 (&words)[2], const uint64* from) {
    const ulonglong2 both = __ldcg(reinterpret_cast<const ulonglong2*>(from));
    words[0] = both.x, words[1] = both.y;
}
// makes them 0, if they are not
__device__ inline void clear_words(const uint64 (&words)[1], uint64* at) {
    if (words[0]) *at = 0;
}
__device__ inline void clear_words(const uint64 (&words)[2], uint64* at) {
    if (words[0] | words[1]) *reinterpret_cast<ulonglong2*>(at) = make_ulonglong2(0, 0);
}

enum Pass { COUNT, ADD, EXPONENT, REFINE };

// What a column's terms leave behind: KINDS bits a component; BAD where one of them has lost bits; FINE where one had a
// rest; and for a coarse column the largest exponent field, + 1.
enum Mark { PLUS_INF = 1, MINUS_INF = 2, NOT_A_NUMBER = 4, BAD = 1 << 6, COARSE = 1 << 7, FINE = 1 << 8 };
enum MarkLayout { KINDS = 3, EXPONENT_BIT = 9 };

struct Matrix {  // what is known of the matrix's values and columns, all found on the device
    uint32 top;      // the largest exponent field of any finite value, + 1
    uint32 longest;  // entries of the longest column
};

constexpr int LISTED = 507;
[[maybe_unused]] constexpr int TILE = 256;  // columns of which one flag says whether any has a mark
struct Call {
    uint32 top;  // the largest exponent field in x, + 1
    uint32 n_coarse;
    uint32 top_so_far, n_begun;  // 0 but while transposed_begin runs
    uint32 n_arrived;            // blocks at the barriers
    uint32 coarse[LISTED];       // the first of the coarse columns, modulo 2^32, in any order

    // waits for all blocks of a cooperative launch, the `turn`-th time; all threads must call it
    __device__ void barrier(uint32 turn) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(&n_arrived, 1u);
            while (fresh(&n_arrived) < turn * gridDim.x) __nanosleep(100);
            __threadfence();
        }
        __syncthreads();
    }
};

// The coarse columns as a Bloom filter of one hash function, in shared memory.
struct Filter {
    static constexpr int BITS = 1 << 14;
    uint32 word[BITS / 32];

    static __device__ uint32 hash(uint32 col) { return col * 2654435761u >> 18; }

    // all threads of the block must call it
    __device__ void build(const Call& call) {
        const uint32 n = fresh(&call.n_coarse);
        const bool all = n > LISTED;
        for (int i = threadIdx.x; i < BITS / 32; i += blockDim.x) word[i] = all ? FULL : 0;
        __syncthreads();
        for (int i = threadIdx.x; !all && i < n; i += blockDim.x) {
            const uint32 at = hash(fresh(call.coarse + i));
            atomicOr(word + at / 32, 1u << at % 32);
        }
        __syncthreads();
    }
    __device__ bool passes(int64 col) const { return word[hash((uint32)col) / 32] >> hash((uint32)col) % 32 & 1; }
};

#if __CUDA_ARCH__ >= 800
__device__ inline uint64 stay() {
    uint64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
#endif
// adds to an accumulator that should stay in L2 while the matrix streams by
__device__ inline void accumulate(uint64* to, uint64 n) {
#if __CUDA_ARCH__ >= 800
    asm volatile("red.global.add.L2::cache_hint.u64 [%0], %1, %2;" ::"l"(to), "l"(n), "l"(stay()) : "memory");
#else
    atomicAdd(to, n);
#endif
}

// A number as four signed digits of `half` bits, the lowest first, as the four floats of a sum hold them, or four
// integers in shared memory. The highest digit is larger where the number is the sum of many terms.
struct Digits {
    int at[4];

    __device__ Digits() {}
    // `large[k]` is 1.5 times a power of two, such that its last bit is the unit of digit k. The sum of v and
    // `large[k]` is rounded to that bit, so the last bits of the sum are the digit.
    __device__ Digits(double v, const double (&large)[4]) {
#pragma unroll
        for (int k = 3; k >= 0; --k) {
            const double sum = v + large[k];
            v -= sum - large[k];
            at[k] = __double2loint(sum);
        }
    }
    static __device__ double large(int k, int half, int unit) { return 1.5 * power_of_two(52 + k * half + unit); }

    // digit k, up to 2^22, as a float: a conversion takes four times as long
    __device__ float small(int k) const { return __int_as_float(0x4b400000 + at[k]) - 12582912.f; }
};

// the same for the four floats of a sum
__device__ inline void accumulate(uint64* to, float d0, float d1, float d2, float d3) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(d0), "f"(d1), "f"(d2),
                 "f"(d3), "l"(stay())
                 : "memory");
#endif
}
__device__ inline void accumulate(uint64* to, const Digits& n) {
    accumulate(to, n.small(0), n.small(1), n.small(2), (float)n.at[3]);
}

template <class Y, bool FLOATS>
struct ColumnSums {
    typedef typename Components<Y>::Part Part;
    static constexpr int LIMBS = Real<Part>::LIMBS;
    static constexpr bool EXACT = Real<Part>::EXACT;

    const Matrix* matrix;
    Call* call;
    uint64* limbs;   // (n_cols, components, LIMBS) 0 before and after, as the next two
    uint64* fine;    // (n_cols, components) what terms have below the unit
    uint32* marks;   // (n_cols,)
    uint32* marked;  // (ceil(n_cols / TILE),) whether any of these columns has a mark

    // bits of the integer that takes what terms have below the unit
    __device__ int fine_bits() const { return 63 - (32 - __clz(matrix->longest)); }

    // Bits that a limb holds, or two of the four floats. Digits have signs and are at most half their base, but for the
    // highest.
    __device__ int payload() const { return FLOATS ? 2 * min(fine_bits() - 38, 23) : fine_bits(); }

    // the unit of a column whose terms all have an exponent field of at most `top`
    __device__ int unit_below(int top) const {
        constexpr int BIAS = Real<Part>::BIAS;
        return min(max(top, 1), 2 * BIAS) - BIAS + 1 - LIMBS * payload() + FLOATS;
    }

    // The product of two reals is below twice the product of their powers of two; a part of a complex product is the
    // sum of two of these.
    __device__ int unit() const {
        return unit_below(max((int)matrix->top, 2) + max((int)call->top, 2) - Real<Part>::BIAS - 2 + Components<Y>::N);
    }

    // adds v, in units, to a sum; all lanes of the warp must call it
    __device__ void add_units(uint64* to, double v, int payload) const {
        if constexpr (LIMBS == 1) {
            const int64 n = __double2ll_rn(v);
            if (n) accumulate(to, (uint64)n);
        } else if constexpr (FLOATS) {
            if (v != 0) accumulate(to, digits(v, payload));
        } else {
            int64 low, high;
            split(v, payload, low, high);
            // neighbouring lanes take the two limbs of one sum: one request for both
            const int odd = lane_id() & 1;
#pragma unroll
            for (int half = 0; half < WARP; half += WARP / 2) {
                const int from = half + lane_id() / 2;
                const int64 low_of = shuffle(low, from), high_of = shuffle(high, from), limb = odd ? high_of : low_of;
                uint64* at = shuffle(to, from) + odd;
                if (limb) accumulate(at, (uint64)limb);
            }
        }
    }

    static __device__ Digits digits(double v, int payload) {
        double large[4];
        for (int k = 0; k < 4; ++k) large[k] = Digits::large(k, payload / 2, 0);
        return Digits(v, large);
    }

    static __device__ void split(double v, int payload, int64& low, int64& high) {
        high = __double2ll_rn(v * power_of_two(-payload));
        low = __double2ll_rn(__fma_rn(-(double)high, power_of_two(payload), v));
    }

    // A term in units: the nearest integer, and the `rest`. Sets the kind of an inf or nan in `mark`, and BAD where the
    // term underflows to 0.
    static __device__ double in_units(Part p, int component, const Scale& scale, uint32& mark, double& rest) {
        typedef Real<Part> R;
        rest = 0;
        if (R::field(p) == 2 * R::BIAS + 1) {
            mark |= (isnan(p) ? NOT_A_NUMBER : p < 0 ? MINUS_INF : PLUS_INF) << component * KINDS;
            p = Part(0);
        }
        const double v = scale.of(R::widened(p)), whole = rint(v);
        if (v == 0 && !is_zero(p)) mark |= BAD;
        rest = v - whole;
        return whole;
    }

    // adds such a rest, which is not 0, to the column's fine integer
    __device__ void add_rest(int64 col, int component, double rest, uint32& mark) const {
        rest *= power_of_two(fine_bits());
        const int64 n = __double2ll_rn(rest);
        atomicAdd(fine + col * Components<Y>::N + component, (uint64)n);
        mark |= rest == (double)n ? FINE : FINE | BAD;
    }

    __device__ void leave(int64 col, uint32 mark) const {
        if (mark && (fresh(marks + col) & mark) != mark) {
            atomicOr(marks + col, mark);
            marked[col / TILE] = 1;
        }
    }

    // the unit of a coarse column
    __device__ int own_unit(uint32 mark) const { return unit_below((int)(mark >> EXPONENT_BIT) - 1); }

    // One real sum of a column from its `words` of `limbs` and its fine integer. Sets `large` where the sum is at least
    // 2^FRACTION units of the last integer in use.
    __device__ Part total(const uint64 (&words)[LIMBS], int64 col, int component, int unit, int payload, uint32 mark,
                          bool& large) const {
        if constexpr (Real<Part>::EXACT) {
            return (Part)words[0];
        } else {
            typedef Real<Part> R;
            const int bits = fine_bits();
            int64 low = 0, high = (int64)words[LIMBS - 1], rest = 0;
            if (LIMBS == 2) {
                low = (int64)words[0];
                if (FLOATS) {  // two digits a word
                    const double half = power_of_two(payload / 2);
                    auto digit = [](int64 word, int shift) { return (double)__int_as_float((int)(word >> shift)); };
                    low = (int64)(digit(low, 0) + digit(low, 32) * half);
                    high = (int64)(digit(high, 0) + digit(high, 32) * half);
                }
            }
            if (mark & FINE) {
                uint64* const second = fine + col * Components<Y>::N + component;
                rest = (int64)fresh(second);
                *second = 0;
                unit -= bits;
            }
            // carries, so that `low` and `rest` are digits
            const int64 low_mask = ((int64)1 << payload) - 1, rest_mask = ((int64)1 << bits) - 1;
            (LIMBS == 2 ? low : high) += rest >> bits;
            rest &= rest_mask;
            if (LIMBS == 2) high += low >> payload;
            low &= low_mask;
            const bool negative = high < 0;
            if (negative) {
                high = -high - ((low | rest) != 0);
                if (LIMBS == 2) low = (-low - (rest != 0)) & low_mask;
                rest = -rest & rest_mask;
            }
            // all three have one sign now, so nothing cancels
            double units = (double)high;
            if (LIMBS == 2) units = units * power_of_two(payload) + (double)low;
            if (mark & FINE) units = units * power_of_two(bits) + (double)rest;
            large |= units >= (double)(1ull << R::FRACTION);
            const double size = ldexp(units, unit);
            return R::rounded(negative ? -size : size);
        }
    }
};

// The unit of a product's sums, and a fast path for usual terms, which are finite and multiples of it.
template <class Y, bool FLOATS, bool EXACT = ColumnSums<Y, FLOATS>::EXACT>
struct Grid {
    typedef typename ColumnSums<Y, FLOATS>::Part Part;
    typedef Real<Part> R;
    static constexpr int INFINITE = 2 * R::BIAS + 1;  // exponent field

    int payload = 0;
    int shift = 0, least = INFINITE;  // exponent fields: of a number whose last bit is a unit; least one of usual terms
    Scale scale;
    double large[4];

    __device__ void set(const ColumnSums<Y, FLOATS>& sums) {
        const int unit = sums.unit();
        payload = sums.payload();
        scale = Scale(unit);
        shift = unit + R::BIAS + R::FRACTION;
        least = min(max(shift, 1), INFINITE);
        if (FLOATS) {
            for (int k = 0; k < 4; ++k) large[k] = Digits::large(k, payload / 2, unit);
            // where `large` is out of range, no term is usual
            if (unit + 52 < -1022 || unit + 52 + 3 * payload / 2 > 1022) least = INFINITE;
        }
    }

    // else neighbouring lanes work together: add_units
    static constexpr bool HAS_USUAL = Real<Part>::LIMBS == 1 || FLOATS;
    __device__ bool is_usual(Part p) const { return (uint32)(R::field(p) - least) < (uint32)(INFINITE - least); }

    // a usual term, in units
    __device__ auto usual(Part p) const {
        if constexpr (FLOATS) {
            return Digits(p, large);
        } else {
            const int64 n = R::bits(p) << (R::field(p) - shift);
            return (uint64)(p < 0 ? -n : n);
        }
    }
};
template <class Y, bool FLOATS>
struct Grid<Y, FLOATS, true> {
    __device__ void set(const ColumnSums<Y, FLOATS>&) {}
};

// How a pass over the matrix adds a term to a column. All lanes of the warp must call put(); `here` says whether this
// lane has a term. A term that is 0 touches no memory: its column may lie beyond the matrix's edge.
template <class Y, bool FLOATS, int PASS_>
struct Adder {
    typedef typename Components<Y>::Part Part;
    static constexpr int PASS = PASS_, N = Components<Y>::N;

    const ColumnSums<Y, FLOATS>& sums;
    const Filter* filter;
    Grid<Y, FLOATS> grid;

    __device__ explicit Adder(const ColumnSums<Y, FLOATS>& sums, const Filter* filter = nullptr) : sums(sums), filter(filter) {
        if (PASS != COUNT) grid.set(sums);
    }

    // whether a column is coarse; for nearly all others the filter saves the load of their marks
    __device__ bool is_coarse(int64 col) const { return filter->passes(col) && fresh(sums.marks + col) & COARSE; }

    __device__ void put(bool here, int64 col, Y p) const {
        if (PASS == COUNT) {
            if (here) atomicAdd(sums.marks + col, 1u);
            return;
        }
        Scale own;  // of a coarse column
        if constexpr (PASS != ADD) {
            bool zero = true;
            for (int i = 0; i < N; ++i) zero &= is_zero(Components<Y>::get(p, i));
            here = here && !zero && is_coarse(col);
            if (PASS == EXPONENT) {
                for (int i = 0; here && i < N; ++i) {
                    const Part part = Components<Y>::get(p, i);
                    const uint32 top = COARSE | (Real<Part>::field(part) + 1) << EXPONENT_BIT;
                    if (!is_zero(part) && fresh(sums.marks + col) < top) atomicMax(sums.marks + col, top);
                }
                return;
            }
            if (!__any_sync(FULL, here)) return;
            if (here) own = Scale(sums.own_unit(fresh(sums.marks + col)));
        }
        if (!here) p = Y{};
        uint32 mark = 0;
        for (int i = 0; i < N; ++i) {
            const Part part = Components<Y>::get(p, i);
            uint64* to = sums.limbs + (col * N + i) * Real<Part>::LIMBS;
            if constexpr (Real<Part>::EXACT) {
                if (part != Part(0)) atomicAdd(to, (uint64)(int64)part);
            } else {
                if constexpr (PASS == ADD && Grid<Y, FLOATS>::HAS_USUAL) {
                    if (is_zero(part)) continue;
                    if (grid.is_usual(part)) {
                        accumulate(to, grid.usual(part));
                        continue;
                    }
                }
                double rest;
                const double v = sums.in_units(part, i, PASS == ADD ? grid.scale : own, mark, rest);
                if (rest != 0) sums.add_rest(col, i, rest, mark);
                sums.add_units(to, v, grid.payload);
            }
        }
        sums.leave(col, mark);
    }
};

// The same for the pass ADD, with the sums of some columns in shared memory. WHOLE: of all columns, counted from
// `first` on. Else of popular columns: the column ~c stands for popular[c].
template <class Y, bool FLOATS, class I, bool WHOLE>
struct SharedAdder {
    typedef typename Components<Y>::Part Part;
    // WORDS: of a column
    static constexpr int PASS = ADD, N = Components<Y>::N, LIMBS = Real<Part>::LIMBS, WORDS = N * LIMBS;

    const ColumnSums<Y, FLOATS>& sums;
    const I* popular;
    const int64 first;
    const int n_shared;
    uint32 *low, *high;  // halves of the sums' words: two 32-bit atomics take less than a loop that compares and swaps
    Grid<Y, FLOATS> grid;

    __device__ SharedAdder(const ColumnSums<Y, FLOATS>& sums, const I* popular, int n_shared, uint32* shared, int64 first = 0)
        : sums(sums), popular(popular), first(first), n_shared(n_shared), low(shared), high(shared + n_shared * WORDS) {
        grid.set(sums);
    }

    __device__ int64 column(int64 place) const { return WHOLE ? first + place : popular[place]; }

    __device__ void add(int word, uint64 n) const {
        const uint32 low_half = (uint32)n, before = atomicAdd(low + word, low_half);
        const uint32 high_half = (uint32)(n >> 32) + (before + low_half < low_half);
        if (high_half) atomicAdd(high + word, high_half);
    }
    // words of four floats are digits
    __device__ void add(int word, const Digits& n) const {
        atomicAdd(low + word, (uint32)n.at[0]);
        atomicAdd(low + word + 1, (uint32)n.at[1]);
        atomicAdd(high + word, (uint32)n.at[2]);
        atomicAdd(high + word + 1, (uint32)n.at[3]);
    }

    __device__ void put(bool here, int64 col, Y p) const {
        if (!here) p = Y{};
        const bool is_shared = WHOLE || col < 0;
        const int place = (int)(WHOLE ? col : ~col);
        uint32 mark = 0;
        for (int i = 0; i < N; ++i) {
            const Part part = Components<Y>::get(p, i);
            const int word = place * WORDS + i * LIMBS;
            uint64* to = sums.limbs + col * WORDS + i * LIMBS;
            if constexpr (Real<Part>::EXACT) {
                if (part == Part(0)) continue;
                if (is_shared)
                    add(word, (uint64)(int64)part);
                else
                    atomicAdd(to, (uint64)(int64)part);
            } else {
                if constexpr (Grid<Y, FLOATS>::HAS_USUAL) {
                    if (is_zero(part)) continue;
                    if (grid.is_usual(part)) {
                        if (is_shared)
                            add(word, grid.usual(part));
                        else
                            accumulate(to, grid.usual(part));
                        continue;
                    }
                }
                double rest;
                const double v = sums.in_units(part, i, grid.scale, mark, rest);
                if (rest != 0) sums.add_rest(is_shared ? column(place) : col, i, rest, mark);
                if (is_shared && v != 0) {
                    if constexpr (LIMBS == 1) {
                        add(word, (uint64)__double2ll_rn(v));
                    } else if constexpr (FLOATS) {
                        add(word, sums.digits(v, grid.payload));
                    } else {
                        int64 limb[2];
                        sums.split(v, grid.payload, limb[0], limb[1]);
                        for (int k = 0; k < 2; ++k) add(word + k, (uint64)limb[k]);
                    }
                }
                if (!WHOLE) sums.add_units(to, is_shared ? 0 : v, grid.payload);
            }
        }
        if (mark) sums.leave(is_shared ? column(place) : col, mark);
    }

    // before the first term and after the last; all threads of the block must call these
    __device__ void clear() const {
        for (int i = threadIdx.x; i < 2 * n_shared * WORDS; i += blockDim.x) low[i] = 0;
        __syncthreads();
    }
    __device__ void flush() const {
        __syncthreads();
        for (int i = threadIdx.x; i < n_shared * N; i += blockDim.x) {
            uint64* to = sums.limbs + (column(i / N) * N + i % N) * LIMBS;
            if constexpr (FLOATS) {
                const int d0 = (int)low[2 * i], d1 = (int)low[2 * i + 1], d2 = (int)high[2 * i], d3 = (int)high[2 * i + 1];
                if (d0 | d1 | d2 | d3) accumulate(to, (float)d0, (float)d1, (float)d2, (float)d3);
            } else {
                for (int limb = 0; limb < LIMBS; ++limb) {
                    const uint64 sum = (uint64)high[i * LIMBS + limb] << 32 | low[i * LIMBS + limb];
                    if (sum) accumulate(to + limb, sum);
                }
            }
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

// y = alpha * sums + beta * y, for all columns that are not coarse, and says which are; REFINE: for those
template <class Y, bool FLOATS, int PASS>
__device__ void finish_columns(const ColumnSums<Y, FLOATS>& sums, int64 n_cols, Y* y, Y alpha, Y beta, int update) {
    typedef typename Components<Y>::Part Part;
    constexpr bool EXACT = Real<Part>::EXACT;
    // U: columns in flight
    constexpr int N = Components<Y>::N, LIMBS = Real<Part>::LIMBS, U = PASS == ADD ? 4 / LIMBS : 1;
    int payload = 0, matrix_unit = 0;
    if constexpr (!EXACT) {
        payload = sums.payload();
        if (PASS == ADD) matrix_unit = sums.unit();
    }
    // From the last column to the first: the last columns' sums may still be in L2. The first ones, which are 0 now,
    // stay there for the next product.
    const int64 stride = gridDim.x * (int64)blockDim.x;
    for (int64 begin = n_cols - 1 - (blockIdx.x * (int64)blockDim.x + threadIdx.x); begin >= 0; begin -= U * stride) {
        uint32 marks[U] = {};
        uint64 words[U][N][LIMBS] = {};
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 col = begin - u * stride;
            if (col < 0) break;
            if (!EXACT && (PASS == REFINE || fresh(sums.marked + col / TILE))) marks[u] = fresh(sums.marks + col);
            for (int i = 0; i < N; ++i) load_words(words[u][i], sums.limbs + (col * N + i) * LIMBS);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 col = begin - u * stride;
            if (col < 0) break;
            int unit = matrix_unit;
            if constexpr (PASS == REFINE) {
                if (!(marks[u] & COARSE)) continue;
                unit = sums.own_unit(marks[u]);
            }
            Y value{};
            bool large = false;
            for (int i = 0; i < N; ++i) {
                const Part sum = sums.total(words[u][i], col, i, unit, payload, marks[u], large);
                Components<Y>::set(value, i, with_specials(sum, PASS == REFINE ? 0 : marks[u] >> i * KINDS));
                clear_words(words[u][i], sums.limbs + (col * N + i) * LIMBS);
            }
            const bool is_coarse = PASS == ADD && marks[u] & BAD && !large && !(marks[u] & (BAD - 1));
            if (marks[u]) sums.marks[col] = is_coarse ? COARSE : 0;
            if (is_coarse) {
                const uint32 place = atomicAdd(&sums.call->n_coarse, 1u);
                if (place < LISTED) sums.call->coarse[place] = (uint32)col;
            } else {
                store(y + col, value, alpha, beta, update);
            }
        }
    }
}

// What a format's last kernel does, a cooperative launch: y, and all sums and marks 0 again. `matrix.scatter(adder)` is
// a pass over the matrix. All threads must call it.
template <class Y, bool FLOATS, class M>
__device__ void finish(const ColumnSums<Y, FLOATS>& sums, const M& matrix, int64 n_cols, Y* y, Y alpha, Y beta, int update) {
    finish_columns<Y, FLOATS, ADD>(sums, n_cols, y, alpha, beta, update);
    if constexpr (!ColumnSums<Y, FLOATS>::EXACT) {
        __shared__ Filter filter;
        sums.call->barrier(1);
        if (!fresh(&sums.call->n_coarse)) return;
        filter.build(*sums.call);
        matrix.scatter(Adder<Y, FLOATS, EXPONENT>(sums, &filter));
        sums.call->barrier(2);
        matrix.scatter(Adder<Y, FLOATS, REFINE>(sums, &filter));
        sums.call->barrier(3);
        finish_columns<Y, FLOATS, REFINE>(sums, n_cols, y, alpha, beta, update);
    }
}
