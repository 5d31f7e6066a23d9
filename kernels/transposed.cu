// What the transposed products of all formats need before they add: see transposed.cuh.

#include "transposed.cuh"

// the largest exponent field of all finite numbers in `values`, as numbers of type Y, + 1, that this thread of the grid
// has seen
template <class Y, class A>
__device__ uint32 exponent_seen(const A* values, int64 n) {
    typedef typename Components<Y>::Part Part;
    uint32 largest = 0;
    if constexpr (!Real<Part>::EXACT) {
        constexpr int U = 4;  // loads in flight
        const int64 stride = gridDim.x * (int64)blockDim.x;
        for (int64 begin = blockIdx.x * (int64)blockDim.x + threadIdx.x; begin < n; begin += U * stride) {
            A loaded[U];
#pragma unroll
            for (int u = 0; u < U; ++u) loaded[u] = begin + u * stride < n ? stream(values + begin + u * stride) : A{};
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const Y value = Widen<Y, A>::from(loaded[u]);
                for (int part = 0; part < Components<Y>::N; ++part) {
                    const int f = Real<Part>::field(Components<Y>::get(value, part));
                    if (f < 2 * Real<Part>::BIAS + 1) largest = max(largest, (uint32)f + 1);
                }
            }
        }
    }
    return warp_max(largest);
}

// largest_exponent: top = the largest exponent field of all finite numbers in `values`, as numbers of type Y, + 1
//
// mapping   a grid of threads strides over the values
// traffic   sizeof(A) a value
// races     a maximum of integers, taken atomically
template <class A, class Y>
__global__ void largest_exponent(const A* values, int64 n, uint32* top) {
    const uint32 largest = exponent_seen<Y>(values, n);
    if (lane_id() == 0 && largest) atomicMax(top, largest);
}

// transposed_begin: finds the largest exponent in x, and clears the flags of columns with marks
//
// mapping   a grid of threads strides over both
// traffic   sizeof(Y) an entry of x
// races     a maximum of integers, taken atomically; the last block to finish publishes it
template <class Y>
__global__ void transposed_begin(const Y* x, int64 n_rows, uint32* marked, int64 n_cols, Call* call) {
    for (int64 tile = blockIdx.x * (int64)blockDim.x + threadIdx.x; tile * TILE < n_cols; tile += gridDim.x * (int64)blockDim.x)
        marked[tile] = 0;
    const uint32 largest = exponent_seen<Y>(x, n_rows);
    if (lane_id() == 0 && largest) atomicMax(&call->top_so_far, largest);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicInc(&call->n_begun, gridDim.x - 1) == gridDim.x - 1) {  // which makes it 0 again
            call->top = atomicExch(&call->top_so_far, 0u);
            call->n_coarse = call->n_arrived = 0;
        }
    }
}

// longest_column: the largest of `count`
//
// mapping   a grid of threads strides over the columns
// races     a maximum of integers, taken atomically
__global__ void longest_column(const uint32* count, int64 n_cols, uint32* longest) {
    uint32 most = 0;
    for (int64 col = blockIdx.x * (int64)blockDim.x + threadIdx.x; col < n_cols; col += gridDim.x * (int64)blockDim.x)
        most = max(most, count[col]);
    most = warp_max(most);
    if (lane_id() == 0 && most) atomicMax(longest, most);
}
