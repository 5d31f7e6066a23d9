// The sum of a row of BBCSR: what every kernel that multiplies by it shares.
//
// `READ` says how tables and entries of x are loaded, and whether entries must be waited for.

// the tables are read once, past L1, and x stays as it is while the kernel runs. KEEPS: `once` of common.cuh. ALL_AT_ONCE: a
// warp has registers for all that U blocks need, so that it waits for values and x once
template <bool KEEPS, bool ALL_AT_ONCE>
struct ReadOnce {
    static constexpr bool AT_ONCE = ALL_AT_ONCE;
    template <class T>
    static __device__ T table(const T* p) {
        return once<KEEPS>(p);
    }
    template <class T>
    static __device__ T entry(const T* p) {
        return cached(p);
    }
    template <class Y>
    __device__ Y none() const {
        return Y{};
    }
    template <class Y, int U, int B, class F>
    __device__ void gather(Y (&)[U][B], F load) const {
        load();
    }
};

// U blocks are loaded before the first is used; of the bin's last few, only those that are there.
template <class READ, class A, class Y, class I, class M, int B, int U, bool HOLES, bool ALL, class C>
__device__ Y add_blocks(const READ& read, const C* col, const Opened<A>& data, const M* present, int count, const Y* x, Y sum) {
    C c[U];
    M bits[U];
    Stored<A> v[U][B];
    Y xs[U][B];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const bool here = ALL || u < count;
        c[u] = here ? READ::table(col + u * WARP) : C(-1);
        if (HOLES) bits[u] = here ? READ::table(present + u * WARP) : M(0);
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
        for (int j = 0; j < B; ++j)
            v[u][j] = ALL || u < count ? READ::table(data.slot + (u * B + j) * WARP) : Stored<A>{};
    // keeps the loads of values above those of x. Without it the compiler asks for values where columns are there
    // already, and needs fewer registers: better for single columns, and large blocks have too many values
    if (READ::AT_ONCE || (B > 1 && B <= 6)) __syncwarp();
    read.gather(xs, [&] {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool here = !is_padding<I>(c[u], 0);
            const Y* from = x + (I)c[u] * B;
#pragma unroll
            for (int j = 0; j < B; ++j) {
                const bool entry = here && (!HOLES || (bits[u] >> j & 1));
                xs[u][j] = entry ? READ::entry(from + j) : read.template none<Y>();
            }
        }
    });
    if (READ::AT_ONCE) all_asked_for(x);
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
        for (int j = 0; j < B; ++j)
            if (ALL || u < count)  // 0 * 0 added to -0 is 0: how many there are must not depend on U
                sum = mac(data.template decoded<Y>(v[u][j]), xs[u][j], sum);
    return sum;
}

// the share of warp `part` of the S, of a bin's row: `col`, `data` and `present` are the bin's
template <class READ, class A, class Y, class I, class M, int B, int U, bool HOLES, int S, class C>
__device__ Y row_sum(const C* col, Opened<A> data, const M* present, int n_blocks, int part, const Y* x,
                     const READ& read = READ()) {
    const int slot = part * U * WARP + lane_id();
    data += part * U * B * WARP + lane_id();
    if (HOLES) present += slot;
    col += slot;
    asm("" : "+l"(x));  // one pointer, not a sum of two for each entry
    Y sum{};
    int block = part * U;
#pragma unroll 1
    for (; block + U <= n_blocks; block += S * U) {
        sum = add_blocks<READ, A, Y, I, M, B, U, HOLES, true>(read, col, data, present, U, x, sum);
        col += S * U * WARP;
        data += S * U * B * WARP;
        if (HOLES) present += S * U * WARP;
    }
    if (block < n_blocks)
        sum = add_blocks<READ, A, Y, I, M, B, U, HOLES, false>(read, col, data, present, n_blocks - block, x, sum);
    return sum;
}
