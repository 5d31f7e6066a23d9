// Gram matrices and moments of rows, summed entry after entry: the same bits however rows are cut into panels.

// gram: out[i, j] += sum over rows r of conj(A[r, i]) * A[r, j], for j >= i
//
// mapping   a warp has row i of the result, from column blockIdx.y * width on: so many sums in shared memory. It takes the
//           rows of A that have column i in their order; its lanes take neighbouring entries of one of them
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

template <class Y, class A, int U>
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
        for (int k = 0; k < entries; ++k) {
            const int begin = __shfl_sync(FULL, from, k), end = __shfl_sync(FULL, to, k);
            const Y scale = shuffle(factor, k);
            __syncwarp();
            for (int e = begin + lane; e < end; e += U * WARP) {
                int column[U];
                Y sum[U];
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const int at = e + u * WARP;
                    column[u] = at < end ? indices[at] - first : -1;
                    sum[u] = at < end ? Widen<Y, A>::from(data[at]) : Y();
                }
#pragma unroll
                for (int u = 0; u < U; ++u)  // all are read before the first is written: they differ
                    if (column[u] >= 0) sum[u] = mac(scale, sum[u], sums[column[u]]);
#pragma unroll
                for (int u = 0; u < U; ++u)
                    if (column[u] >= 0) sums[column[u]] = sum[u];
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
