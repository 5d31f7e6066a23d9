// The values of a matrix: how they are stored, and how they are decoded. Nothing else in the kernels knows. The host's
// side is cvrarray/gpu/distinct.py.
//
// A names how a matrix's values are stored: a number type, Few<type> or One<type>. Values<A> is what a structure of
// tables has; Opened<A>, which opened() makes of it, is what decodes. All threads of a block must call opened(). Pads
// and holes hold 0, or what distinct[0] is: see cvrarray/core/tables.py.
//
// decoded() is in two steps where lanes share what they load: looked_up() in the lane that loads a slot, which gives
// what lanes pass on, and widened() in those that multiply.

// a value a slot
template <class A>
struct Values {
    typedef A Stored;    // what a slot holds
    typedef A LookedUp;  // what that stands for
    typedef Values Opened;
    static constexpr int BYTES = sizeof(A);     // of a slot
    static constexpr bool HOLES_ARE_0 = true;  // else distinct[0]

    const Stored* slot;

    __device__ const Opened& opened() const { return *this; }
    __device__ Values operator+(int64 slots) const { return {slot + slots}; }
    __device__ void operator+=(int64 slots) { slot += slots; }
    __device__ Values from(const Stored* first) const { return {first}; }

    __device__ A looked_up(Stored stored) const { return stored; }
    template <class Y>
    __device__ Y widened(A value) const {
        return Widen<Y, A>::from(value);
    }
    // what a slot holds, as the product computes with it
    template <class Y>
    __device__ Y decoded(Stored stored) const {
        return widened<Y>(looked_up(stored));
    }
};

template <class A>
using Stored = typename Values<A>::Stored;
template <class A>
using LookedUp = typename Values<A>::LookedUp;
template <class A>
using Opened = typename Values<A>::Opened;

// numbers of at most MOST distinct values, which are decoded from shared memory
template <class A>
struct Few;
template <class A>
struct Values<Few<A>> {
    typedef uint8 Stored;
    typedef A LookedUp;
    typedef Values Opened;
    static constexpr int BYTES = 1, MOST = 256;
    static constexpr bool HOLES_ARE_0 = false;

    const Stored* slot;
    const A* distinct;
    int64 n_distinct;

    __device__ Opened opened() const {
        __shared__ A table[MOST];
        for (int i = threadIdx.x; i < n_distinct; i += blockDim.x) table[i] = distinct[i];
        __syncthreads();
        return {slot, table, n_distinct};
    }
    __device__ Values operator+(int64 slots) const { return {slot + slots, distinct, n_distinct}; }
    __device__ void operator+=(int64 slots) { slot += slots; }
    __device__ Values from(const Stored* first) const { return {first, distinct, n_distinct}; }

    __device__ A looked_up(Stored number) const { return distinct[number]; }
    template <class Y>
    __device__ Y widened(A value) const {
        return Widen<Y, A>::from(value);
    }
    template <class Y>
    __device__ Y decoded(Stored number) const {
        return widened<Y>(looked_up(number));
    }
};

// one value: slots hold nothing
struct Nothing {};
template <bool KEEPS>
__device__ Nothing once(const Nothing*) {
    return {};
}
__device__ inline Nothing stream(const Nothing*) { return {}; }
__device__ inline Nothing cached(const Nothing*) { return {}; }
__device__ inline Nothing shuffle(Nothing, int, unsigned = FULL, int = WARP) { return {}; }

template <class A>
struct One;
template <class A>
struct Values<One<A>> {
    typedef Nothing Stored;
    typedef Nothing LookedUp;
    static constexpr int BYTES = 0;
    static constexpr bool HOLES_ARE_0 = false;
    struct Opened {
        const Stored* slot;
        A value;

        __device__ const Opened& operator+(int64) const { return *this; }
        __device__ void operator+=(int64) {}
        __device__ const Opened& from(const Stored*) const { return *this; }

        __device__ Nothing looked_up(Stored) const { return {}; }
        template <class Y>
        __device__ Y widened(Nothing) const {
            return Widen<Y, A>::from(value);
        }
        template <class Y>
        __device__ Y decoded(Stored) const {
            return widened<Y>({});
        }
    };

    const Stored* slot;
    const A* distinct;

    __device__ Opened opened() const { return {slot, cached(distinct)}; }
};
