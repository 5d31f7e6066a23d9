// Products of dense vectors or matrices where a sparse matrix has entries: sddmm, and the gradient with respect to values.

// V neighbouring numbers of a row, of which `left` are there, with zeros behind them
template <class Y, int V, bool ALIGNED>
__device__ Vector<Y, V> part_of_row(const Y* at, int64 left) {
    if (ALIGNED) return *reinterpret_cast<const Vector<Y, V>*>(at);
    Vector<Y, V> part;
#pragma unroll
    for (int v = 0; v < V; ++v) part.at[v] = v < left ? at[v] : Y();
    return part;
}

// sampled_products: out[e] = sum over t of left[row[e], t] * right[col[e], t]
//
// mapping   G lanes share U neighbouring entries: a lane has V neighbouring t of each G * V, and loads for all U entries
//           before it adds. Entries of one row load its part of left once. Then lanes add their sums pairwise; each step
//           halves the entries that a lane goes on with, too. With one lane an entry, a thread's entries are a block apart
// traffic   2 * sizeof(I) + sizeof(Y) bytes an entry, k numbers of right, and k of left for each U; caches may hold them
// requires  left and right in C order, with k columns; row and col in range. ALIGNED: rows begin at multiples of V numbers
// races     none: each entry of out has one writer, and its terms are added in an order that k alone decides
template <class Y, class I, int G, int U, int V, bool ALIGNED>
__global__ void sampled_products(const I* row, const I* col, int64 nnz, const Y* left, const Y* right, int64 k, Y* out) {
    const int64 thread = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    const int64 first = G == 1 ? thread + (int64)blockIdx.x * blockDim.x * (U - 1) : thread / G * U;
    const int64 apart = G == 1 ? blockDim.x : 1;
    const int part = threadIdx.x % G;
    const Y *a[U], *b[U];
    Y sum[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const int64 entry = min(first + u * apart, nnz - 1);
        a[u] = left + (int64)row[entry] * k;
        b[u] = right + (int64)col[entry] * k;
        sum[u] = Y();
    }
    const bool is_one_row = a[0] == a[U - 1];
    for (int64 t = (int64)part * V; t < k; t += G * V) {
        Vector<Y, V> x[U], y[U];
#pragma unroll
        for (int u = 0; u < U; ++u) y[u] = part_of_row<Y, V, ALIGNED>(b[u] + t, k - t);
        x[0] = part_of_row<Y, V, ALIGNED>(a[0] + t, k - t);
#pragma unroll
        for (int u = 1; u < U; ++u) x[u] = is_one_row ? x[0] : part_of_row<Y, V, ALIGNED>(a[u] + t, k - t);
#pragma unroll
        for (int u = 0; u < U; ++u) {
#pragma unroll
            for (int v = 0; v < V; ++v) sum[u] = mac(x[u].at[v], y[u].at[v], sum[u]);
        }
    }
    int entries = U;  // that a lane goes on with; all of this is known at compile time
    int64 mine = first;
#pragma unroll
    for (int step = G / 2; step; step /= 2) {
        if (entries > 1) {
            entries /= 2;
            const bool upper = part & step;
#pragma unroll
            for (int u = 0; u < entries; ++u) {
                const Y given = upper ? sum[u] : sum[u + entries], kept = upper ? sum[u + entries] : sum[u];
                sum[u] = add(kept, shuffle(given, lane_id() ^ step));
            }
            mine += upper ? entries : 0;
        } else {
            sum[0] = add(sum[0], shuffle(sum[0], lane_id() ^ step));
        }
    }
    if (G > U && part % (G / U > 0 ? G / U : 1)) return;
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const int64 entry = mine + u * apart;
        if (u < entries && entry < nnz) out[entry] = sum[u];
    }
}
