// Y = A @ X for dense X with k columns: how threads share rows and columns.
//
// A group of G lanes holds W * G * V neighbouring columns of one row of X or Y: each lane W vectors of V numbers, G * V
// columns apart, one vector load each.

// which columns a thread block multiplies by, counted in what it takes at a time. A grid has room for 65,535 in y, so z
// counts further ones; the last may lie beyond all columns
__device__ inline int64 tile_of_block() { return blockIdx.z * (int64)gridDim.y + blockIdx.y; }

// a lane's part of a row of X or Y: W vectors, STRIDE columns apart, the first at column `at`; columns from k on are
// not there
template <class Y, int V, int W, int STRIDE>
struct Columns {
    Vector<Y, V> vector[W];

    // HAS_FIRST: the first one is always there
    template <bool HAS_FIRST = false>
    __device__ void load(const Y* from, int64 at, int64 k) {
#pragma unroll
        for (int w = 0; w < W; ++w)
            if ((HAS_FIRST && w == 0) || at + w * STRIDE < k)
                vector[w] = *reinterpret_cast<const Vector<Y, V>*>(from + w * STRIDE);
    }

    // by selection: a branch would copy those that stay
    __device__ void clear_if(bool clears) {
#pragma unroll
        for (int w = 0; w < W; ++w)
#pragma unroll
            for (int i = 0; i < V; ++i) vector[w].at[i] = clears ? Y{} : vector[w].at[i];
    }

    // to and from memory that has room for all of them, vectors `apart` there
    __device__ void keep(Y* to, int apart) const {
#pragma unroll
        for (int w = 0; w < W; ++w) *reinterpret_cast<Vector<Y, V>*>(to + w * apart) = vector[w];
    }
    __device__ void take(const Y* from, int apart) {
#pragma unroll
        for (int w = 0; w < W; ++w) vector[w] = *reinterpret_cast<const Vector<Y, V>*>(from + w * apart);
    }

    __device__ void add_product(Y value, const Columns& x) {
#pragma unroll
        for (int w = 0; w < W; ++w)
#pragma unroll
            for (int i = 0; i < V; ++i) vector[w].at[i] = mac(value, x.vector[w].at[i], vector[w].at[i]);
    }

    // but for a `skip` that is not 0
    __device__ void add_product_unless(unsigned skip, Y value, const Columns& x) {
#pragma unroll
        for (int w = 0; w < W; ++w)
#pragma unroll
            for (int i = 0; i < V; ++i) mac_unless(skip, value, x.vector[w].at[i], vector[w].at[i]);
    }

    __device__ void add(const Columns& other) {
#pragma unroll
        for (int w = 0; w < W; ++w)
#pragma unroll
            for (int i = 0; i < V; ++i) vector[w].at[i] = ::add(vector[w].at[i], other.vector[w].at[i]);
    }

    // the first `vectors` of them
    __device__ void load_first(int vectors, const Y* from) {
#pragma unroll
        for (int w = 0; w < W; ++w)
            if (w < vectors) vector[w] = *reinterpret_cast<const Vector<Y, V>*>(from + w * STRIDE);
    }

    // whether one of the first `vectors` has a nan
    __device__ bool has_nan(int vectors) const {
        bool found = false;
#pragma unroll
        for (int w = 0; w < W; ++w)
#pragma unroll
            for (int i = 0; i < V; ++i) found |= w < vectors && is_nan(vector[w].at[i]);
        return found;
    }

    // columns from `begin` on
    __device__ void store(Y* to, int64 at, int64 k, Y alpha, Y beta, int update, int64 begin = 0) const {
#pragma unroll
        for (int w = 0; w < W; ++w) {
            if (at + w * STRIDE >= k) break;
            if (at + w * STRIDE < begin) continue;
            auto place = reinterpret_cast<Vector<Y, V>*>(to + w * STRIDE);
            Vector<Y, V> value;
            if (update == ACCUMULATE) value = *place;
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const Y term = scaled(vector[w].at[i], alpha, update);
                value.at[i] = update == ACCUMULATE ? mac(beta, value.at[i], term) : term;
            }
            *place = value;
        }
    }
};
