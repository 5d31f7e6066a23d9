// Smoothed aggregation: aggregates of nodes, candidates by QR, and products of matrices that are sparse in dense blocks.
//
// A matrix has offsets ptr (n_rows + 1,), columns idx that ascend in each row, and blocks of height x width numbers in C
// order. G neighbouring lanes share a row; more than a warp are a thread block. All is in double precision, and every number
// has one writer, which adds its terms in an order that the structure alone decides.

// the lanes that share a row
template <int G>
struct Row {
    int64 number;
    int lane;
    unsigned lanes;  // of the warp

    __device__ Row() {
        number = (blockIdx.x * (int64)blockDim.x + threadIdx.x) / G;
        lane = threadIdx.x % G;
        lanes = G < WARP ? ((1u << G % WARP) - 1) << lane_id() / G * G : FULL;
    }
    __device__ int sum(int value) const {
        static_assert(G <= WARP);
        for (int apart = G / 2; apart; apart /= 2) value += shuffle(value, lane_id() ^ apart, lanes);
        return value;
    }
    __device__ void wait() const {
        if (G > WARP)
            __syncthreads();
        else
            __syncwarp(lanes);
    }
    __device__ uint64 most(uint64 value) const {
        static_assert(G <= WARP);
        for (int apart = G / 2; apart; apart /= 2) {
            const uint64 other = shuffle(value, lane_id() ^ apart, lanes);
            value = other > value ? other : value;
        }
        return value;
    }
};

[[maybe_unused]] constexpr uint64 UNDECIDED = 1, ROOT = ~0ull;

// the first of n ascending columns that is not less than `column`; n: none
__device__ inline int64 place_of(int column, const int* row, int64 n) {
    int64 low = 0, high = n;
    while (low < high) {
        const int64 middle = (low + high) / 2;
        if (row[middle] < column)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// the square of a block's Frobenius norm; products are rounded before they are added, as on a CPU: strong connections must be
// the same
__device__ inline double square_of(const double* block, int size) {
    double total = 0;
    for (int i = 0; i < size; ++i) total = __dadd_rn(total, __dmul_rn(block[i], block[i]));
    return total;
}

// aggregation_norms: the Frobenius norm of the block of each row on the diagonal
//
// mapping   a thread a row
// traffic   8 bytes a row, the block, and the columns on the way to it
// requires  every row has one
// races     none
[[maybe_unused]] __global__ void aggregation_norms(
    const int64* indptr, const int* indices, const double* data, int64 n_rows, int size, double* norms) {
    const int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (i >= n_rows) return;
    const int64 own = indptr[i] + place_of(i, indices + indptr[i], indptr[i + 1] - indptr[i]);
    norms[i] = __dsqrt_rn(square_of(data + own * size, size));
}

// aggregation_strong: how many strong connections each row has, in ptr[row + 1]; or, with FILL, these, from idx[ptr[row]] on
//
// mapping   a thread a row
// traffic   4 bytes a block and its numbers, 8 bytes of a norm, which caches hold; 12 bytes a connection
// races     none
template <bool FILL>
__global__ void aggregation_strong(
    const int64* indptr, const int* indices, const double* data, int64 n_rows, int size, const double* norms, double theta,
    int by_row, int64* ptr, int* idx, double* weight) {
    const int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (i >= n_rows) return;
    const double own = norms[i];
    int64 at = FILL ? ptr[i] : 0;
    for (int64 k = indptr[i]; k < indptr[i + 1]; ++k) {
        const int j = indices[k];
        const double other = norms[j], square = square_of(data + k * size, size);
        const double least = theta * theta * (own * (by_row ? min(own, other) : other));
        if (j != i && !(square > 0 && square >= least)) continue;
        if (FILL) {
            idx[at] = j;
            weight[at] = j == i ? 0 : square / (own * other);
        }
        ++at;
    }
    if (!FILL) ptr[i + 1] = at;
}

// of a node in a round: a hash where it is not decided, else its state. SplitMix64's finalizer: Steele, Lea and Flood 2014
__device__ inline uint64 key_of(const uint64* state, int64 i, uint64 round) {
    if (state[i] != UNDECIDED) return state[i];
    uint64 x = i + (round + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return (x ^ x >> 31) >> 33 << 32 | (uint64)i + 2;
}

// aggregation_spread: near[i] = the largest key of node i and its neighbours
// aggregation_decide: a node that is not decided becomes a root where its key is the largest within two edges, and none where a
// root is that near; *last = round + 1 if some node stays undecided
//
// mapping   G lanes a node
// traffic   4 bytes an edge, and the neighbours' states, which caches may hold
// requires  near and *last are 0 in the first round
// races     none: spread reads states and decide writes each node's own; *last gets one number from whoever writes
template <int G>
__global__ void aggregation_spread(
    const int64* ptr, const int* idx, int64 n, uint64 round, const uint64* state, uint64* near) {
    const Row<G> row;
    const int64 i = row.number;
    if (i >= n || near[i] == ROOT) return;  // that neighbour is a root for ever
    uint64 most = key_of(state, i, round);
    for (int64 k = ptr[i] + row.lane; k < ptr[i + 1]; k += G) most = max(most, key_of(state, idx[k], round));
    most = row.most(most);
    if (row.lane == 0) near[i] = most;
}
template <int G>
__global__ void aggregation_decide(
    const int64* ptr, const int* idx, int64 n, uint64 round, const uint64* near, uint64* state, int* last) {
    const Row<G> row;
    const int64 i = row.number;
    if (i >= n || state[i] != UNDECIDED) return;
    uint64 most = near[i];
    for (int64 k = ptr[i] + row.lane; k < ptr[i + 1]; k += G) most = max(most, near[idx[k]]);
    most = row.most(most);
    if (row.lane) return;
    if (most == key_of(state, i, round))
        state[i] = ROOT;
    else if (most == ROOT)
        state[i] = 0;
    else
        *last = round + 1;
}

// aggregation_join: nodes without a label get that of their first neighbour that has one; with weights, of the one with the
// strongest connection, the first of equals
//
// mapping   a thread a node
// traffic   4 or 12 bytes an edge, and the neighbours' labels
// races     none: found is another array than label
template <bool STRONGEST>
__global__ void aggregation_join(
    const int64* ptr, const int* idx, const double* weight, int64 n, const int* label, int* found) {
    const int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (i >= n) return;
    int own = label[i];
    if (own < 0) {
        double most = 0;
        for (int64 k = ptr[i]; k < ptr[i + 1] && (STRONGEST || own < 0); ++k) {
            const int other = label[idx[k]];
            if (other >= 0 && (!STRONGEST || weight[k] > most)) {
                own = other;
                if (STRONGEST) most = weight[k];
            }
        }
    }
    found[i] = own;
}

// aggregation_orthonormal: QR of the candidates of each aggregate by Gram and Schmidt, twice
//
// mapping   a warp an aggregate; lanes stride over its rows. Sums are added up by warp_sum
// traffic   k^2 times the candidates of an aggregate, which caches hold
// requires  basis has the candidates' copy; factor is 0
// races     none: a lane reads and writes its own rows of basis; aggregates have no node in common
[[maybe_unused]] __global__ void aggregation_orthonormal(
    const int64* ptr, const int64* order, int64 n, int height, int k, double dependent, double* basis, double* factor) {
    const int64 a = warp_id();
    if (a >= n) return;
    const int64 begin = ptr[a], n_rows = (ptr[a + 1] - begin) * height;
    auto row = [&](int64 q) { return basis + (order[begin + q / height] * height + q % height) * k; };
    auto product = [&](int c, int d) {
        double sum = 0;
        for (int64 q = lane_id(); q < n_rows; q += WARP) sum = mac(row(q)[c], row(q)[d], sum);
        return warp_sum(sum);
    };
    double* own = factor + a * k * k;
    for (int c = 0; c < k; ++c) {
        const double before = product(c, c);
        for (int turn = 0; turn < 2; ++turn)
            for (int d = 0; d < c; ++d) {
                const double along = product(c, d);
                if (lane_id() == 0) own[d * k + c] += along;
                for (int64 q = lane_id(); q < n_rows; q += WARP) row(q)[c] = mac(-along, row(q)[d], row(q)[c]);
            }
        const double length = sqrt(product(c, c));
        const bool is_new = length > dependent * sqrt(before);
        if (lane_id() == 0 && is_new) own[c * k + c] = length;
        for (int64 q = lane_id(); q < n_rows; q += WARP) row(q)[c] = is_new ? row(q)[c] / length : 0;
    }
}

// aggregation_columns: how many columns each row of a product of two matrices has, in ptr[row + 1]; or, with FILL, these
// columns, ascending, from idx[ptr[row]] on. *full = 1 where a row has more columns than its table holds
//
// mapping   G lanes a row; a lane takes an entry of the row of a, and enters the columns of that row of b into a hash table in
//           shared memory. With FILL entries are packed, and each is written where its rank is
// traffic   4 bytes an entry of a and a term, which caches hold; 4 bytes a column that is written
// requires  G, at most a warp, divides SIZE, a power of 2; *full is zeroed by the host
// races     none: the table's slots are claimed by compare-and-swap, and what is in it in the end does not depend on who came
//           first; __syncwarp stands between writing and reading
template <bool FILL, int G, int SIZE, int THREADS>
__global__ void aggregation_columns(
    const int64* a_ptr, const int* a_idx, const int64* b_ptr, const int* b_idx, int64 n_rows, int64* ptr, int* idx,
    int64* full) {
    __shared__ int tables[THREADS / G][SIZE], lists[FILL ? THREADS / G : 1][SIZE];
    const Row<G> row;
    const int64 i = row.number;
    if (i >= n_rows) return;
    int* table = tables[threadIdx.x / G];
    for (int s = row.lane; s < SIZE; s += G) table[s] = -1;
    __syncwarp(row.lanes);
    int entered = 0;
    bool is_full = false;
    for (int64 k = a_ptr[i] + row.lane; k < a_ptr[i + 1] && !is_full; k += G) {
        const int64 end = b_ptr[a_idx[k] + 1];
        for (int64 t = b_ptr[a_idx[k]]; t < end && !is_full; ++t) {
            const int column = b_idx[t];
            unsigned slot = column * 2654435761u;
            slot = (slot >> 16 ^ slot) % SIZE;
            int n_probes = 0;
            for (;;) {
                const int was = atomicCAS(table + slot, -1, column);
                entered += was == -1;
                if (was == -1 || was == column) break;
                slot = (slot + 1) % SIZE;
                if (++n_probes == SIZE) {
                    is_full = true;
                    break;
                }
            }
        }
    }
    __syncwarp(row.lanes);
    if (__any_sync(row.lanes, is_full)) {
        if (row.lane == 0) *full = 1;
        return;
    }
    if (!FILL) {
        const int n = row.sum(entered);
        if (row.lane == 0) ptr[i + 1] = n;
        return;
    }
    int* list = lists[FILL ? threadIdx.x / G : 0];
    int n = 0;
    for (int s = row.lane; s < SIZE; s += G) {
        const int column = table[s];
        const unsigned taken = __ballot_sync(row.lanes, column >= 0);
        if (column >= 0) list[n + __popc(taken & ((1u << lane_id()) - 1))] = column;
        n += __popc(taken);
    }
    __syncwarp(row.lanes);
    for (int e = row.lane; e < n; e += G) {
        int rank = 0;
        for (int other = 0; other < n; ++other) rank += list[other] < list[e];
        idx[ptr[i] + rank] = list[e];
    }
}

// aggregation_expand: the place of every term of a product of two matrices: the row in the first, the column in the second
//
// mapping   G lanes an entry of the first matrix
// traffic   8 bytes a term, 4 bytes read of it, which caches hold
// requires  before (n + 1,): terms before each entry; n of them from `first` on, which the host counts from
// races     none
template <int G>
__global__ void aggregation_expand(
    const int* a_row, const int* a_idx, int64 n, const int64* before, const int64* b_ptr, const int* b_idx, int* row, int* col) {
    const Row<G> of;
    const int64 e = of.number;
    if (e >= n) return;
    const int64 at = before[e] - before[0], n_terms = before[e + 1] - before[e], from = b_ptr[a_idx[e]];
    for (int64 t = of.lane; t < n_terms; t += G) {
        row[at + t] = a_row[e];
        col[at + t] = b_idx[from + t];
    }
}

// aggregation_multiply: the blocks of a product whose structure is known
//
// mapping   G lanes a row of the product. They take one entry of the row of a after the other; for each, the numbers of the
//           row of b: a lane finds the column's place by bisection and adds to it
// traffic   a once; rows of b as often as columns of a name them; the row of the product stays in L1
// requires  every term has a place
// races     none: columns of a row of b differ, so lanes add to different numbers, and wait between entries of a
template <int G, bool SCALAR>
__global__ void aggregation_multiply(
    const int64* a_ptr, const int* a_idx, const double* a, const int64* b_ptr, const int* b_idx, const double* b,
    const int64* ptr, const int* idx, int64 n_rows, int height, int depth, int width, double* out) {
    const Row<G> row;
    if (row.number >= n_rows) return;
    const int size = SCALAR ? 1 : height * width, ahead = G / size, rest = G % size;
    const int64 begin = ptr[row.number], n = ptr[row.number + 1] - begin, a_end = a_ptr[row.number + 1];
    const int* own = idx + begin;
    double* sums = out + begin * size;
    for (int64 q = row.lane; q < n * size; q += G) sums[q] = 0;
    row.wait();
    for (int64 k = a_ptr[row.number]; k < a_end; ++k) {
        const int64 end = b_ptr[a_idx[k] + 1];
        int64 t = b_ptr[a_idx[k]] + row.lane / size;
        for (int within = row.lane % size; t < end;) {
            const int64 at = place_of(b_idx[t], own, n - 1);  // it is there, so the last need not be looked at
            if (SCALAR) {
                sums[at] = mac(a[k], b[t], sums[at]);
            } else {
                const double* left = a + (k * height + within / width) * depth;
                const double* right = b + t * depth * width + within % width;
                double sum = sums[at * size + within];
                for (int m = 0; m < depth; ++m) sum = mac(left[m], right[m * width], sum);
                sums[at * size + within] = sum;
            }
            t += ahead;  // the number G further, without a division
            within += rest;
            if (within >= size) {
                within -= size;
                ++t;
            }
        }
        row.wait();
    }
}

// aggregation_filter: the entries of a matrix of numbers that a graph has; the others of a row are added to its diagonal, each
// by what it multiplies in the candidate `near`
//
// mapping   a thread a row
// traffic   12 bytes an entry and an edge, and the candidate, which caches hold
// requires  out is 0; the graph has the diagonal, and no edge that is no entry
// races     none
[[maybe_unused]] __global__ void aggregation_filter(
    const int64* indptr, const int* indices, const double* data, const int64* ptr, const int* idx, int64 n_rows,
    const double* near, double* out) {
    const int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (i >= n_rows) return;
    int64 own = ptr[i], at = ptr[i];
    while (own < ptr[i + 1] - 1 && idx[own] != i) ++own;
    for (int64 k = indptr[i]; k < indptr[i + 1]; ++k) {
        const int j = indices[k];
        if (at < ptr[i + 1] && idx[at] == j)
            out[at++] += data[k];
        else
            out[own] += data[k] * (near[i] != 0 ? near[j] / near[i] : 1.0);
    }
}

// aggregation_smooth: data = T - scale * data, where data are the blocks of A T
//
// mapping   G lanes a row
// traffic   16 bytes a number of data
// races     none
template <int G>
__global__ void aggregation_smooth(
    const int64* ptr, const int* idx, int64 n_rows, int height, int width, const double* scale, const int* aggregate,
    const double* basis, double* data) {
    const Row<G> row;
    const int64 i = row.number;
    if (i >= n_rows) return;
    const int size = height * width;
    for (int64 q = row.lane; q < (ptr[i + 1] - ptr[i]) * size; q += G) {
        const int64 t = ptr[i] + q / size;
        const int within = q % size;
        const double own = idx[t] == aggregate[i] ? basis[i * size + within] : 0;
        data[t * size + within] = mac(-scale[i * height + within / width], data[t * size + within], own);
    }
}

// aggregation_entries: the numbers of the blocks, row by row of the whole matrix, or with COLUMNS the columns of these
//
// mapping   a warp a row of blocks; lanes write neighbours
// traffic   16 bytes a number, or 4
// races     none
template <bool COLUMNS>
__global__ void aggregation_entries(
    const int64* ptr, const int* idx, const double* data, int64 n_rows, int height, int width, double* values, int* columns) {
    const Row<WARP> row;
    if (row.number >= n_rows) return;
    const int64 begin = ptr[row.number], n = (ptr[row.number + 1] - begin) * width;  // numbers of a row
    for (int64 q = row.lane; q < n * height; q += WARP) {
        const int64 r = q / n, t = begin + q % n / width;
        const int c = q % n % width;
        if (COLUMNS)
            columns[begin * height * width + q] = idx[t] * width + c;
        else
            values[begin * height * width + q] = data[(t * height + r) * width + c];
    }
}
