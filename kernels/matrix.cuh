// Y = A @ X for dense X with k columns: how threads share rows and columns.
//
// A group of G lanes holds W * G * V neighbouring columns of X and Y: each lane W vectors of V numbers, one vector load each,
// G * V columns apart. A group follows one row (or a few rows) of A by itself, so its sums stay in registers, and groups of
// different rows share nothing. The entries of A are loaded by the group's lanes, each its share, one batch ahead: a load of a
// column, of a value, and of a row of X would else be waited for one after the other. Shuffles pass them on. The groups of a
// thread block have neighbouring rows, which share lines of the tables and rows of X in L1.

// V neighbouring numbers as one load or store
template <class Y, int V>
struct alignas(V * sizeof(Y) < 16 ? V * sizeof(Y) : 16) Vector {
    Y at[V];
};

// a lane's part of a row of X or Y: W vectors, STRIDE columns apart; columns from k on are not there
template <class Y, int V, int W, int STRIDE>
struct Columns {
    Vector<Y, V> vector[W];

    __device__ void load(const Y* from, int64 at, int64 k) {
#pragma unroll
        for (int w = 0; w < W; ++w)
            if (at + w * STRIDE < k) vector[w] = *reinterpret_cast<const Vector<Y, V>*>(from + w * STRIDE);
    }

    __device__ void add_product(Y value, const Columns& x) {
#pragma unroll
        for (int w = 0; w < W; ++w)
#pragma unroll
            for (int i = 0; i < V; ++i) vector[w].at[i] = mac(value, x.vector[w].at[i], vector[w].at[i]);
    }

    __device__ void add(const Columns& other) {
#pragma unroll
        for (int w = 0; w < W; ++w)
#pragma unroll
            for (int i = 0; i < V; ++i) vector[w].at[i] = ::add(vector[w].at[i], other.vector[w].at[i]);
    }

    __device__ void store(Y* to, int64 at, int64 k, Y alpha, Y beta, int update) const {
#pragma unroll
        for (int w = 0; w < W; ++w) {
            if (at + w * STRIDE >= k) break;
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

// the lanes of this thread's group
template <int G>
__device__ unsigned group_mask() {
    return G == WARP ? FULL : ((1u << G % WARP) - 1) << (lane_id() & ~(G - 1));
}

// what lane `member` of this thread's group holds
template <int G, class T>
__device__ T from_member(T value, int member) {
    if (G == 1) return value;
    constexpr int WORDS = (sizeof(T) + 3) / 4;
    union {
        T value;
        unsigned word[WORDS];
    } bits;
    bits.value = value;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) bits.word[i] = __shfl_sync(group_mask<G>(), bits.word[i], member, G);
    return bits.value;
}

// N entries of A, each with the row of X that it is for, spread over a group: entry e is held by lane e / EACH
template <class A, class I, int G, int N>
struct Batch {
    static constexpr int EACH = (N + G - 1) / G;
    I column[EACH];  // negative: there is no such entry
    A value[EACH];

    // load(e, column, value) for this lane's entries
    template <class F>
    __device__ void load(F entry) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            column[i] = I(-1);
            value[i] = A{};
            entry(threadIdx.x % G * EACH + i, column[i], value[i]);
        }
    }

    __device__ I column_of(int e) const { return from_member<G>(column[e % EACH], e / EACH); }
    __device__ A value_of(int e) const { return from_member<G>(value[e % EACH], e / EACH); }

    // sum += the entries times their rows of X, AHEAD rows loaded at a time; after(e) follows each entry
    template <int AHEAD, class Y, class Part, class F>
    __device__ void multiply(const Y* x, int64 at, int64 k, Part& sum, F after) const {
#pragma unroll
        for (int begin = 0; begin < N; begin += AHEAD) {
            I row[AHEAD];
            Part of_x[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                row[u] = column_of(begin + u);
                if (row[u] >= 0) of_x[u].load(x + (int64)row[u] * k, at, k);
            }
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                const Y of_entry = Widen<Y, A>::from(value_of(begin + u));
                if (row[u] >= 0) sum.add_product(of_entry, of_x[u]);
                after(begin + u);
            }
        }
    }
};
