// The values of a matrix: how they are stored, and how they are decoded. Nothing else in the kernels knows.

// A table of values, walked along like a pointer. A is the type of the values.
template <class A>
struct Values {
    typedef A Stored;  // what a slot holds

    const Stored* slot;

    // ready to decode; all threads of the block must call it
    __device__ const Values& opened() const { return *this; }
    __device__ Values from(const Stored* first) const { return {first}; }
    __device__ Values operator+(int64 slots) const { return from(slot + slots); }
    __device__ void operator+=(int64 slots) { slot += slots; }

    // the value of a slot as the product computes with it; 0 where there is no entry, which pads and holes hold anyway
    template <class Y>
    __device__ Y decoded(Stored stored, bool /* is_entry */ = true) const {
        return Widen<Y, A>::from(stored);
    }
};

template <class A>
using Stored = typename Values<A>::Stored;
