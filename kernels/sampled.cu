// Products of dense vectors or matrices where a sparse matrix has entries: sddmm, and the gradient with respect to values.

// V neighbouring numbers of a row, of which `left` are there, with zeros behind them
template <class Y, int V, bool ALIGNED>
__device__ Vector<Y, V> part_of_row(const Y* at, int64 left) {
    if constexpr (ALIGNED) {
        return *reinterpret_cast<const Vector<Y, V>*>(at);
    } else {
        Vector<Y, V> part;
#pragma unroll
        for (int v = 0; v < V; ++v) part.at[v] = v < left ? at[v] : Y();
        return part;
    }
}

// sampled_products: out[e] = sum over t of left[row[e], t] * right[col[e], t]
//
// mapping   a thread block has `each` neighbouring entries, whose rows of right are largely the same where rows have the
//           same columns, as those of a block row. G lanes share U neighbouring entries: a lane has V neighbouring t of each
//           G * V, and loads for all U entries before it adds. Entries of one row load its part of left once. Then lanes add
//           their sums pairwise; each step halves the entries that a lane goes on with, too. With one lane an entry, a
//           thread's entries are a thread block apart
// traffic   2 * sizeof(I) + sizeof(Y) bytes an entry, k numbers of right, and k of left for each U; caches may hold them
// requires  left and right in C order, with k columns; row and col in range. ALIGNED: rows begin at multiples of V numbers
// races     none: each entry of out has one writer, and its terms are added in an order that k alone decides
template <class Y, class I, int G, int U, int V, bool ALIGNED>
__global__ void sampled_products(
    const I* row, const I* col, int64 nnz, const Y* left, const Y* right, int64 k, int64 each, Y* out
) {
    const int apart = G == 1 ? blockDim.x : 1;
    const int part = threadIdx.x % G;
    const int64 end = min((blockIdx.x + (int64)1) * each, nnz), last = nnz - 1;
    for (int64 at = blockIdx.x * each; at < end; at += blockDim.x / G * U) {
        int64 first = at + (G == 1 ? threadIdx.x : threadIdx.x / G * U);
        I columns[U];
        Y sum[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            columns[u] = col[min(first + u * apart, last)];
            sum[u] = Y();
        }
        const I own = row[min(first, last)];
        const bool is_one_row = own == row[min(first + (U - 1) * apart, last)];
        for (int64 t = (int64)part * V; t < k; t += G * V) {
            Vector<Y, V> y[U], x = part_of_row<Y, V, ALIGNED>(left + (int64)own * k + t, k - t);
#pragma unroll
            for (int u = 0; u < U; ++u) y[u] = part_of_row<Y, V, ALIGNED>(right + (int64)columns[u] * k + t, k - t);
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (u && !is_one_row) {
                    x = part_of_row<Y, V, ALIGNED>(left + (int64)row[min(first + u * apart, last)] * k + t, k - t);
                }
#pragma unroll
                for (int v = 0; v < V; ++v) sum[u] = mac(x.at[v], y[u].at[v], sum[u]);
            }
        }
        int entries = U;  // that a lane goes on with; known at compile time
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
                first += upper ? entries : 0;
            } else {
                sum[0] = add(sum[0], shuffle(sum[0], lane_id() ^ step));
            }
        }
        const bool stores = G <= U || part % (G > U ? G / U : 1) == 0;
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int64 entry = first + u * apart;
            if (u < entries && stores && entry < end) out[entry] = sum[u];
        }
    }
}
