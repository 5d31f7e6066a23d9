// All iterations of conjugate gradients in one cooperative kernel, for any product: cg_bbcsr.cu and cg_cvr.cu.
//
// After T. Chen, E. Carson, "Predict-and-Recompute Conjugate Gradient Variants", SIAM J. Sci. Comput. 42, 2020. An
// iteration is
//
//     s = A p;    mu = p @ s, delta = z @ s, gamma = s @ M s                  sums over all blocks, of nu and r @ r too
//     alpha = nu / mu;  beta = (nu - 2 alpha delta + alpha^2 gamma) / nu
//     x += alpha p;  r -= alpha s;  z = M r;  p = z + beta p;  nu = r @ z     a barrier
//
// beta is that of Hestenes and Stiefel, without the sum over an r that is not there yet. The next nu is such a sum, so
// errors of the prediction do not add up; x and r are updated as by Hestenes and Stiefel, and are as accurate. So all
// blocks wait for each other twice an iteration, not three times, and only once for numbers. That the last residual was
// small enough is seen after the next product, before anything is updated by it.
//
// A block has neighbouring rows, and keeps its parts of vectors in shared memory where they fit. p is in global memory,
// as all blocks gather from it: it is written between the sums and the barrier, and read between the barrier and the
// next sums. Where blocks have little to gather there is no barrier: entries of p are MARKED, and each is waited for by
// those that gather it. The last bit of a number is no loss: x and r are updated by the same p, rounded.

// Vectors of the system, and where a block keeps its parts of them: bytes from the begin of shared memory, or -1 for
// global memory.
template <class Y>
struct Vectors {
    Y *x, *r, *z, *p, *s;
    const Y* inverse;
    double* history;
    int64 size;  // of blocks of M: 0 for the identity
    int64 place_x, place_r, place_p, place_s, place_inverse;
    int64 free, end;  // of shared memory, where nothing else is
};

// The same of a stack's systems, one after the other: values, vectors and rows of M are so far from those of the one before.
template <class Y>
struct StackVectors {
    Vectors<Y> first;
    int64 count, values_apart, apart, inverse_apart;

    __device__ Vectors<Y> of(int64 system) const {
        Vectors<Y> v = first;
        v.x += system * apart, v.r += system * apart, v.z += system * apart, v.p += system * apart, v.s += system * apart;
        v.inverse += system * inverse_apart * v.size;
        if (v.history) v.history += system;
        return v;
    }
};

template <class T>
__device__ T* at_place(char* memory, int64 place, T* otherwise) {
    return place < 0 ? otherwise : reinterpret_cast<T*>(memory + place);
}

// A block's rows of the system. MARKED: p is in shared memory, and a marked copy of it in global memory. SIZE: that of
// blocks of M, if it is known when this is compiled, else 0. ALONE: of all rows, and p may be in shared memory alone.
template <class Y, int THREADS, bool MARKED, int SIZE, bool ALONE = false>
struct Part {
    const Vectors<Y>& v;
    const int64 row, n;  // the first one, and of all blocks
    const int rows, size;
    Y *const x, *const r, *const s, *const p;
    const Y* const inverse;
    const int per_row, per_column;  // of blocks of M: from one entry to the next
    const uint32 reciprocal;  // 2^32 / size, to divide by it

    __device__ Part(const Vectors<Y>& v, char* shared, int64 row, int64 end, int64 n)
        : v(v), row(row), n(n), rows((int)(min(end, n) > row ? min(end, n) - row : 0)), size(SIZE ? SIZE : (int)v.size),
          x(at_place(shared, v.place_x, v.x + row)), r(at_place(shared, v.place_r, v.r + row)),
          s(at_place(shared, v.place_s, v.s + row)),
          p(at_place(shared, v.place_p, v.p + row)),
          inverse(at_place(shared, v.place_inverse, v.inverse + row * max(size, 1))), per_row(v.place_inverse < 0 ? size : 1),
          per_column(v.place_inverse < 0 ? 1 : rows), reciprocal(size > 1 ? 0xffffffffu / size + 1 : 0) {}

    // p[i], and what other blocks see of it
    __device__ void turn(int i, Y direction, uint32 mark) const {
        if constexpr (MARKED) {
            p[i] = marked(direction, 0);
            tell(v.p + row + i, marked(direction, mark));
        } else {
            p[i] = direction;
        }
    }

    // calls f(i) for each row
    template <class F>
    __device__ void each(F f) const {
        for (int i = threadIdx.x; i < rows; i += THREADS) f(i);
    }

    __device__ void load() const {
        each([&](int i) {
            if (v.place_x >= 0) x[i] = v.x[row + i];
            if (v.place_r >= 0) r[i] = v.r[row + i];
            if (MARKED) turn(i, v.p[row + i], 0);
            if (ALONE && v.place_p >= 0) p[i] = v.p[row + i];
        });
        if (v.place_inverse >= 0)  // column by column: neighbouring threads find their entries side by side
            for (int i = threadIdx.x; i < rows * size; i += THREADS)
                const_cast<Y*>(inverse)[i % size * rows + i / size] = v.inverse[row * size + i];
        __syncthreads();
    }
    __device__ void save() const {
        __syncthreads();
        each([&](int i) {
            if (v.place_x >= 0) v.x[row + i] = x[i];
            if (v.place_r >= 0) v.r[row + i] = r[i];
            if (ALONE && v.place_p >= 0) v.p[row + i] = p[i];
            if (size > 1) v.z[row + i] = blocked_row(i, r);
        });
    }

    // row i of M y, for a diagonal M, or of blocks: of those the rows of y must be there
    __device__ Y scaled_row(int i, Y y) const { return size ? mac(inverse[i], y, Y{}) : y; }
    __device__ Y blocked_row(int i, const Y* y) const {
        const int begin = __umulhi(i, reciprocal) * size;
        if (SIZE && begin + SIZE <= rows)  // not the last block of M, of which rows may be missing
            return whole_block_row<SIZE>(inverse + i * per_row, per_column, y + begin);
        return block_row(inverse + i * per_row, per_column, y + begin, 1, min(size, rows - begin));
    }

    // mu, delta, gamma of this block's rows, whose s is sum(i). delta is z @ s = r @ M s, as M is Hermitian
    template <class SUM>
    __device__ void weigh_product(SUM sum, double (&sums)[3]) const {
        each([&](int i) {
            const Y product = sum(i);
            s[i] = product;
            sums[0] += dot(p[i], product);
            if (size > 1) return;
            const Y scaled = scaled_row(i, product);
            sums[1] += dot(r[i], scaled);
            sums[2] += dot(product, scaled);
        });
        if (size <= 1) return;
        __syncthreads();
        each([&](int i) {
            const Y scaled = blocked_row(i, s);
            sums[1] += dot(r[i], scaled);
            sums[2] += dot(s[i], scaled);
        });
    }

    // the updates, and r @ z and r @ r of this block's rows
    __device__ void update(double alpha, double beta, uint32 mark, double (&sums)[2]) const {
        each([&](int i) {
            const Y residual = plus(r[i], -alpha, s[i]);
            r[i] = residual;
            sums[1] += dot(residual, residual);
            if (size <= 1) proceed(i, residual, scaled_row(i, residual), alpha, beta, mark, sums);
        });
        if (size <= 1) return;
        __syncthreads();
        each([&](int i) {
            proceed(i, r[i], blocked_row(i, r), alpha, beta, mark, sums);
        });
    }

    __device__ void proceed(int i, Y residual, Y entry, double alpha, double beta, uint32 mark, double (&sums)[2]) const {
        const Y direction = p[i];
        x[i] = plus(x[i], alpha, direction);
        turn(i, plus(entry, beta, direction), mark);
        sums[0] += dot(residual, entry);
    }
};

// At most `count` iterations of a column that goes on. product.run(exchange, mark) computes the block's rows of A p;
// product.sum(i) gives one. Norms of an iteration are `step` from those of the one before.
//
// requires  all blocks on the device at once; blocks of M lie in one block; words are all ones
template <class Y, int THREADS, bool MARKED, int SIZE, bool ALONE, class PRODUCT>
__device__ void iterate(const Part<Y, THREADS, MARKED, SIZE, ALONE>& part, PRODUCT& product, Column* column, uint64* words,
                        int64 count, int64 step = 1) {
    typedef Exchange<5, THREADS, ALONE> Sums;
    __shared__ typename Sums::Shared sums;
    __shared__ Column c;
    if (threadIdx.x == 0) c = *column;
    __syncthreads();
    const int64 most = min(count, c.limit - c.iterations);
    if (c.reason != RUNNING || most <= 0) return;
    Sums exchange(sums, words);
    product.prepare();
    part.load();
    if (MARKED) exchange.barrier([] {});
    // Every thread knows when to end, and the factors: they come from the same sums, and waiting for one thread takes
    // longer.
    const bool is_tested = c.tolerance >= 0, has_rows = threadIdx.x / WARP * WARP < part.rows;
    const double enough = threshold(c) * threshold(c);
    double* const history = part.v.history && blockIdx.x == 0 && threadIdx.x == 0 ? part.v.history + c.iterations * step : nullptr;
    const auto& total = exchange.shared.total;
    double weights[2] = {blockIdx.x == 0 && threadIdx.x == 0 ? c.nu : 0.};  // a sum that is known
    exchange.leave(3, weights, true);
    uint32 mark = 0;
    int64 done = 0;
    for (;; ++done) {
        double products[3] = {};
        if (done < most) {
            product.run(exchange, mark);
            part.weigh_product([&](int i) { return product.sum(i); }, products);
        }
        exchange.leave(0, products, has_rows);
        exchange.sum();
        const double mu = total[0], nu = total[3], rr = total[4];
        if (history && done) history[done * step] = sqrt(rr);
        if (done == most) break;
        if (is_tested && !(is_curved(mu) && (done == 0 || (rr > enough && nu > 0 && is_finite(rr + nu))))) break;
        const double alpha = quotient(nu, mu), inverse = quotient(1, nu);
        const double beta = max(0., (nu - 2 * alpha * total[1] + alpha * alpha * total[2]) * inverse);
        weights[0] = weights[1] = 0;
        mark ^= 1;
        part.update(alpha, beta, mark, weights);
        if constexpr (MARKED) {
            exchange.leave(3, weights, has_rows);
            __syncthreads();
        } else {
            exchange.barrier([&] { exchange.leave(3, weights, has_rows); });
        }
    }
    part.save();
    if (blockIdx.x || threadIdx.x) return;
    if (done) {
        c.iterations += done - 1;
        c.nu = total[3];
        end_iteration(c, c.nu, total[4], nullptr);
    }
    if (c.reason == RUNNING && done < most) c.reason = reason_of_curvature(c, total[0]);
    *column = c;
}
