// What MINRES, BiCGSTAB and LSMR share on a GPU: scalars of a column, and when it takes part in a step.
//
// A step is some products and kernels. The first of them says which columns take part (`moves`): those that go on, and
// have not had all their iterations. The others leave vectors as they are. Who ends says why: `reason`, a number of
// cvrarray/linalg/ends.py.

[[maybe_unused]] constexpr int64 BREAKDOWN = 12;  // the method's: beyond what conjugate gradients end by

// The end of a column's state: words of 8 bytes, as the host reads them
struct Course {
    double norm, verify_at;  // of the updated residual; where it is small enough to be tested against the true one
    int64 iterations, limit;
    int64 reason, moves;

    __device__ bool goes_on() const { return reason == RUNNING && iterations < limit; }
    __device__ void end(int64 why) {
        reason = why;
        moves = 0;
    }
};

// 0 where b is 0
__device__ inline double over(double a, double b) { return b != 0 ? a / b : 0; }
