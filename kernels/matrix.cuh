// Y = A @ X for dense X with k columns: how a warp's lanes share rows and columns.
//
// G lanes hold G * V neighbouring columns of one row of X or Y, V of them each, in one vector load; the 32 / G groups of a warp
// take 32 / G slots of a step (the rows or lanes of the format) at a time, and G turns make the step. So a step's values and
// columns are loaded once, by the lane of their slot, and each turn fetches its own by shuffles.

// V neighbouring numbers as one load or store
template <class Y, int V>
struct alignas(V * sizeof(Y) < 16 ? V * sizeof(Y) : 16) Vector {
    Y at[V];
};

template <class Y, int V>
__device__ Vector<Y, V> load_vector(const Y* from) {
    return *reinterpret_cast<const Vector<Y, V>*>(from);
}

template <class Y, int V>
__device__ void store_vector(Y* to, const Vector<Y, V>& sum, Y alpha, Y beta, int update) {
    Vector<Y, V> value;
    if (update == ACCUMULATE) value = load_vector<Y, V>(to);
#pragma unroll
    for (int i = 0; i < V; ++i) {
        const Y term = scaled(sum.at[i], alpha, update);
        value.at[i] = update == ACCUMULATE ? mac(beta, value.at[i], term) : term;
    }
    *reinterpret_cast<Vector<Y, V>*>(to) = value;
}

template <class Y, int V>
__device__ void add_product(Vector<Y, V>& sum, Y value, const Vector<Y, V>& x) {
#pragma unroll
    for (int i = 0; i < V; ++i) sum.at[i] = mac(value, x.at[i], sum.at[i]);
}
