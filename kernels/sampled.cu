// Products of dense vectors or matrices where a sparse matrix has entries: the gradient with respect to its values.

// sampled_products: out[e] = sum over t of left[row[e], t] * right[col[e], t]
//
// mapping   G lanes share an entry: they load neighbouring t, and add their sums pairwise. With one lane an entry a
//           thread has U entries, a block apart, and loads for all of them before it adds
// traffic   2 * sizeof(I) + sizeof(Y) bytes an entry, and k entries of left and of right, which caches may hold
// requires  left and right in C order, with k columns; row and col in range
// races     none: each entry of out has one writer, and its terms are added in an order that k alone decides
template <class Y, class I, int G, int U>
__global__ void sampled_products(const I* row, const I* col, int64 nnz, const Y* left, const Y* right, int64 k, Y* out) {
    const int64 apart = blockDim.x / G;
    const int64 first = blockIdx.x * apart * U + threadIdx.x / G;
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
    for (int64 t = part; t < k; t += G) {
#pragma unroll
        for (int u = 0; u < U; ++u) sum[u] = mac(a[u][t], b[u][t], sum[u]);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
        for (int step = G / 2; step; step /= 2) sum[u] = add(sum[u], shuffle(sum[u], lane_id() ^ step));
        const int64 entry = first + u * apart;
        if (entry < nnz && part == 0) out[entry] = sum[u];
    }
}
