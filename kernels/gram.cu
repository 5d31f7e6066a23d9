// Gram matrices and moments of rows, summed entry after entry: the same bits however rows are cut into panels.

// gram: out[i, j] += sum over rows r of conj(A[r, i]) * A[r, j], for j >= i
//
// mapping   a warp has row i of the result, from column blockIdx.y * width on: so many sums in shared memory. It takes the
//           rows of A that have column i in their order; its lanes take neighbouring entries of one of them, and load the
//           first U of R rows before they add the first row: columns that most rows have would wait for memory otherwise
// traffic   12 + sizeof(A) bytes for each entry of column i, and 4 + sizeof(A) for each entry to its right in its row:
//           mostly from L2, as neighbouring warps meet the same rows
// requires  columns that ascend in each row; ptr, row, place: the entries by column, and where they stand in their row;
//           ends[r * tiles + t]: the first entry of row r in tile t of columns or after it, and so on over all rows
// races     none: a warp alone writes its sums, and columns of one row differ. The next row waits for the lanes
template <class Y>
__device__ Y conjugate(Y value) {
    return value;
}
template <class T>
__device__ Complex<T> conjugate(Complex<T> value) {
    return {value.re, negated(value.im)};
}

// U entries of a row, a warp apart
template <class Y, int U>
struct Entries {
    int column[U];
    Y value[U];
    template <class A>
    __device__ void load(const int* indices, const A* data, int from, int to, int first) {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int at = from + u * WARP;
            column[u] = at < to ? indices[at] - first : -1;
            value[u] = at < to ? Widen<Y, A>::from(data[at]) : Y();
        }
    }
    // all sums are read before the first is written: columns differ
    __device__ void add_to(Y* sums, Y scale) {
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (column[u] >= 0) value[u] = mac(scale, value[u], sums[column[u]]);
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (column[u] >= 0) sums[column[u]] = value[u];
    }
};

template <class Y, class A, int U, int R>
__global__ void gram(const int* ptr, const int* row, const int* place, const int* ends, const int* indices, const A* data,
                     int n, int width, Y* out) {
    extern __shared__ char shared[];
    Y* sums = (Y*)shared;
    const int i = blockIdx.x, tile = blockIdx.y, tiles = gridDim.y, lane = threadIdx.x;
    const int first = tile * width, n_sums = min(width, n - first);
    if (i >= first + n_sums) return;
    Y* mine = out + (int64)i * n + first;
    for (int j = lane; j < n_sums; j += WARP) sums[j] = mine[j];
    for (int start = ptr[i]; start < ptr[i + 1]; start += WARP) {
        const int entries = min(WARP, ptr[i + 1] - start);
        int from = 0, to = 0;
        Y factor = Y();
        if (lane < entries) {
            const int at = place[start + lane];
            const int64 end = (int64)row[start + lane] * tiles + tile;
            from = max(at, ends[end]), to = ends[end + 1];
            factor = conjugate(Widen<Y, A>::from(data[at]));
        }
        for (int k = 0; k < entries; k += R) {  // lanes after the last entry have an empty row
            Entries<Y, U> begins[R];
            int from_of[R], to_of[R];
#pragma unroll
            for (int r = 0; r < R; ++r) {
                from_of[r] = shuffle(from, k + r) + lane, to_of[r] = shuffle(to, k + r);
                begins[r].load(indices, data, from_of[r], to_of[r], first);
            }
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const Y scale = shuffle(factor, k + r);
                __syncwarp();
                begins[r].add_to(sums, scale);
                for (int e = from_of[r] + U * WARP; e < to_of[r]; e += U * WARP) {
                    Entries<Y, U> more;
                    more.load(indices, data, e, to_of[r], first);
                    more.add_to(sums, scale);
                }
            }
        }
    }
    __syncwarp();
    for (int j = lane; j < n_sums; j += WARP) mine[j] = sums[j];
}

// moments: of each row of a CSR the count, the mean and the sum of squares of what differs from it (Welford 1962), brought up
// to date with its entries
//
// mapping   a thread has a row
// traffic   sizeof(A) bytes an entry, which a cache line holds several of; 24 bytes a row, read and written
// requires  real values
// races     none: a row has one thread
template <class A, class P>
__global__ void moments(const P* indptr, const A* data, int64 n, int64* count, double* mean, double* squares) {
    const int64 row = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    int64 seen = count[row];
    double middle = mean[row], sum = squares[row];
    for (int64 k = indptr[row]; k < indptr[row + 1]; ++k) {
        const double value = Widen<double, A>::from(data[k]), away = value - middle;
        middle += away / (double)++seen;
        sum += away * (value - middle);
    }
    count[row] = seen, mean[row] = middle, squares[row] = sum;
}
