"""How to add a kernel and a function, step by step, as docs/contributing.md shows them; a format is in test_new_format.

What stands between the marks is shown on that page: change it here, and it changes there.
"""

from __future__ import annotations

import numba
import numpy as np
import pytest
import scipy.sparse
import test_new_format

import cvrarray
from cvrarray.array import format as array_format
from cvrarray.array import protocol, reductions

toy = test_new_format.toy  # the fixture: plain CSR as a format

# [kernel on a CPU]


def product_matrix(t, dtype):
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; the array class calls it by this name."""
    return lambda x, y, alpha, beta: _product_matrix(t.indptr, t.indices, t.data, x, y, alpha, beta)


@numba.njit(nogil=True)
def _product_matrix(indptr, indices, data, x, y, alpha, beta):
    for row in range(len(indptr) - 1):  # a row has one owner, so that the bits are the same in every run
        if beta == 0:  # then y may hold anything
            y[row] = 0
        y[row] *= beta
        for k in range(indptr[row], indptr[row + 1]):
            y[row] += alpha * data[k] * x[indices[k]]


# [the same on a GPU: kernels/csr_matmat.cu]

CSR_MATMAT = """
// Mapping: a warp takes a row, lane j the columns j, j + 32, ... of X. Traffic: 4 + sizeof(A) bytes a nonzero, and X's rows.
// Requires: indptr does not decrease, indices lie within X. Races: none, every entry of Y has one owner.
template <class A, class I>
__global__ void csr_matmat(const int64* indptr, const I* indices, const A* data, int64 n_rows, int64 k, const A* x, A* y,
                           A alpha, A beta, int update) {
  const int64 row = warp_id();
  if (row >= n_rows) return;
  for (int64 j = lane_id(); j < k; j += WARP) {
    A sum = A();
    for (int64 e = indptr[row]; e < indptr[row + 1]; ++e) sum = mac(data[e], x[indices[e] * k + j], sum);
    store(y + row * k + j, sum, alpha, beta, update);
  }
}
"""

# [a function of NumPy's]


def ptp(a, axis=None):
    """``numpy.ptp``: the largest value less the smallest, with NumPy's argument names."""
    return reductions.max_(a, axis) - reductions.min_(a, axis)


#: What makes it known, in ``protocol.FUNCTIONS``:
ROW = {np.ptp: ptp}

# [end]


@pytest.fixture
def matrix():
    return scipy.sparse.random_array((70, 50), density=0.1, rng=np.random.default_rng(1), format="csr")


def test_a_kernel_on_a_cpu(toy, matrix, monkeypatch):
    """It is enough that the module has it: no column-by-column product any more."""
    monkeypatch.setattr(test_new_format.KERNELS, "product_matrix", product_matrix, raising=False)
    monkeypatch.setattr(array_format, "by_columns", lambda product: pytest.fail("the kernel was not found"))
    A = cvrarray.asarray(matrix, format="toy", device="cpu")
    X = np.random.default_rng(2).random((50, 3))
    np.testing.assert_allclose(A @ X, matrix @ X)


def test_a_kernel_on_a_gpu():
    """It compiles, without a GPU and without a warning, as test_kernels_compile demands of each instantiation."""
    pytest.importorskip("cupy", reason="kernels are compiled through CuPy, which is not installed")
    from test_kernels_compile import compile_for

    from cvrarray.gpu import compiler

    text = compiler._read("common.cuh") + CSR_MATMAT
    names = tuple(compiler.instantiation("csr_matmat", a, i) for a, i in (("float32", "int32"), ("complex128", "int64")))
    assert not compile_for("sm_80", text, "csr_matmat.cu", names).strip("\0\n ")


def test_a_function(matrix, monkeypatch):
    """NumPy finds it in the table; before, the error named the remedy."""
    A = cvrarray.asarray(matrix, device="cpu")
    with pytest.raises(TypeError, match="todense"):
        np.ptp(A, axis=0)
    for function, rule in ROW.items():
        monkeypatch.setitem(protocol.FUNCTIONS, function, rule)
    for axis in (0, 1, None):
        np.testing.assert_array_equal(np.ptp(A, axis=axis), np.ptp(matrix.toarray(), axis=axis))
