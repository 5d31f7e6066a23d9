// Rows of CVR that are cut at the same columns: see gpu/cut_rows.py.
//
// A piece is what a row has in a segment of columns. Those of a segment follow each other in the order of rows, and segments in
// turn; after them come the rows that are not cut, a piece each.

#include "values.cuh"
#include "matrix.cuh"

// Nonzeros of a row: piece `number` is those in a segment of `width` columns, or behind all segments those of a row that is not
// cut, as it has less than `least`.
template <class I>
struct PieceOfColumns {
    int64 segment, begin, size;

    __device__ PieceOfColumns(const int64* ptr, const I* col, int64 n_rows, int64 number, int n_segments, int64 width, int64 least) {
        const int64 row = number % n_rows;
        segment = number / n_rows;
        begin = ptr[row];
        size = ptr[row + 1] - begin;
        const bool is_cut = size >= least;
        if (segment == n_segments) {
            if (is_cut) size = 0;
        } else if (is_cut) {
            const int64 first = lower_bound(col + begin, size, segment * width);
            size = lower_bound(col + begin, size, (segment + 1) * width) - first;
            begin += first;
        } else {
            size = 0;
        }
    }
};

// cut_rows_count: counts[segment * n_rows + row] = the nonzeros of a piece, and behind all of these whether there are any
//
// mapping   one thread a row and a segment
// races     none
template <class I>
__global__ void cut_rows_count(const int64* ptr, const I* col, int64 n_rows, int n_segments, int64 width, int64 least,
                               int64* counts) {
    const int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x, n = (n_segments + 1) * n_rows;
    if (i >= n) return;
    const PieceOfColumns<I> piece(ptr, col, n_rows, i, n_segments, width, least);
    counts[i] = piece.size;
    counts[n + i] = piece.size > 0;
}

// cut_rows_fill: the nonzeros of the pieces, which are rows of a CSR; where it begins, and the number of each, -1 where there is
// none, unless `number` is null. `sums` are those of the counts, up to and with each. A narrow C counts columns from a segment's
//
// mapping   one warp a row and a segment
// traffic   nonzero: 8 + sizeof(I) + sizeof(C) bytes
// races     none
template <class I, class C>
__global__ void cut_rows_fill(const int64* ptr, const I* col, int64 n_rows, int n_segments, int64 width, int64 least,
                              const int64* sums, const int* slot, I* piece_ptr, C* piece_col, int* piece_slot, int* number) {
    const int64 i = (blockIdx.x * (int64)blockDim.x + threadIdx.x) / WARP, n = (n_segments + 1) * n_rows;
    if (i >= n) return;
    const PieceOfColumns<I> piece(ptr, col, n_rows, i, n_segments, width, least);
    const int64 nnz = sums[n - 1], to = sums[i] - piece.size;
    const int64 before = sizeof(C) < sizeof(I) ? piece.segment * width : 0;
    for (int64 k = lane_id(); k < piece.size; k += WARP) {
        piece_col[to + k] = (C)(col[piece.begin + k] - before);
        piece_slot[to + k] = slot[piece.begin + k];
    }
    if (lane_id() || !number) return;
    const int64 of_piece = sums[n + i] - nnz - 1;
    number[i] = piece.size ? (int)of_piece : -1;
    if (piece.size) piece_ptr[of_piece] = (I)to;
    if (i == n - 1) piece_ptr[sums[2 * n - 1] - nnz] = (I)nnz;
}

// cut_rows_finish: Y = alpha * (the sums of a row's pieces) + beta * Y
//
// mapping   one warp a row and WARP * V columns (tile_of_block() counts these): all sums are loaded before the first is added
// traffic   piece and row: k sizeof(Y) bytes; row: 4 (S + 1)
// requires  S < WARP
// races     none; sums are added in the order of columns
template <class Y, int V, int S>
__global__ void cut_rows_finish(const int* __restrict__ number, int64 n_rows, const Y* __restrict__ sums, int k, Y* __restrict__ y,
                                Y alpha, Y beta, int update) {
    typedef Columns<Y, V, 1, WARP * V> Part;
    const int64 row = (blockIdx.x * (int64)blockDim.x + threadIdx.x) / WARP;
    const int64 at = tile_of_block() * (WARP * V) + lane_id() * V;
    if (row >= n_rows) return;
    const int own = lane_id() <= S ? number[lane_id() * n_rows + row] : -1;
    int piece[S + 1];
#pragma unroll
    for (int s = 0; s <= S; ++s) piece[s] = __shfl_sync(FULL, own, s);
    if (at >= k) return;
    Part of_piece[S + 1], sum = {};
#pragma unroll
    for (int s = 0; s <= S; ++s)
        if (piece[s] >= 0) of_piece[s].load(sums + piece[s] * (int64)k + at, at, k);
#pragma unroll
    for (int s = 0; s <= S; ++s)
        if (piece[s] >= 0) sum.add(of_piece[s]);
    sum.store(y + row * k + at, at, k, alpha, beta, update);
}
