// New values for CVR, from the order of a canonical CSR: see Runs in cvrarray/core/tables.py. W is a word of a value's
// size.

// cvr_values: every chunk's slots
//
// mapping   one warp a chunk, one thread a lane, walking its steps backwards: a slot belongs to the next run that ends
//           in its lane
// traffic   2 sizeof(W) + 1/8 bytes a slot, 8 a run; a lane reads one number after the other, so that L1 holds its next
//           ones
// races     none: a warp owns its chunk's slots
template <class W>
__global__ void cvr_values(const int64* step_ptr, int64 n_chunks, int n_lanes, const uint32* run_mask, const int64* run_ptr,
                           const int64* starts, const W* data, W* values) {
    constexpr int BATCH = 8;
    const int64 chunk = warp_id();
    if (chunk >= n_chunks) return;
    const int lane = lane_id();
    const unsigned below = (1u << lane) - 1;
    const int64 first = step_ptr[chunk];
    int64 run = run_ptr[chunk + 1], from = -1;  // -1: the lane's pads, which are its last steps
    // steps end - 32 to end - 1, as far as they are there
    for (int64 end = step_ptr[chunk + 1]; end > first; end -= WARP) {
        const int count = (int)min((int64)WARP, end - first);
        const uint32 masks = lane < count ? run_mask[end - 1 - lane] : 0;  // of the steps, the last one first
        for (int s = 0; s < count; s += BATCH) {
            // where each step's number is, for all steps of the batch, before the first of them is loaded
            int64 at[BATCH];
            W value[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                const unsigned ended = __shfl_sync(FULL, masks, (s + u) & (WARP - 1));
                at[u] = -1;
                if (s + u < count) {
                    run -= __popc(ended);
                    at[u] = ended >> lane & 1 ? run + __popc(ended & below) : -1;
                }
            }
#pragma unroll
            for (int u = 0; u < BATCH; ++u) at[u] = at[u] < 0 ? -1 : starts[at[u]];
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
                if (at[u] >= 0) from = at[u];
                value[u] = from < 0 || s + u >= count ? W{} : data[from + (end - 1 - s - u)];
            }
#pragma unroll
            for (int u = 0; u < BATCH; ++u)
                if (s + u < count && lane < n_lanes) values[(end - 1 - s - u) * n_lanes + lane] = value[u];
        }
    }
}
