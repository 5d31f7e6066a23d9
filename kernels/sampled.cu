// Products of dense vectors or matrices where a sparse matrix has entries: the gradient with respect to its values.

// sampled_products: out[e] = sum over t of left[row[e], t] * right[col[e], t]
//
// mapping   G lanes share an entry: they load neighbouring t, and add their sums pairwise
// traffic   2 * sizeof(I) + sizeof(Y) bytes an entry, and k entries of left and of right, which caches may hold
// requires  left and right in C order, with k columns; row and col in range
// races     none: each entry of out has one writer, and its terms are added in an order that k alone decides
template <class Y, class I, int G>
__global__ void sampled_products(const I* row, const I* col, int64 nnz, const Y* left, const Y* right, int64 k, Y* out) {
    const int64 entry = (blockIdx.x * (int64)blockDim.x + threadIdx.x) / G;
    const int part = threadIdx.x % G;
    Y sum = Y();
    if (entry < nnz) {
        const Y* a = left + (int64)row[entry] * k;
        const Y* b = right + (int64)col[entry] * k;
        for (int64 t = part; t < k; t += G) sum = mac(a[t], b[t], sum);
    }
#pragma unroll
    for (int step = G / 2; step; step /= 2) sum = add(sum, shuffle(sum, lane_id() ^ step));
    if (entry < nnz && part == 0) out[entry] = sum;
}
