"""What of the peers' suites is out of scope, each with its reason."""

from __future__ import annotations

OWN = "that results are of SciPy's own classes and formats"
N_D = "ours have two dimensions"

#: What a refusal of ours says -> the reason: a test that ends in one asks for something that arrays of ours are not.
REFUSALS = [
    (r"is immutable|arrays of ours are immutable", "assignment: arrays of ours are immutable"),
    (r"Call todense\(\)|does not become dense|would become dense|so the result is dense", "the result would be dense"),
    (r"(have|has) 2 dimensions|of 3 dimensions|at most 2 dimensions|has 2 axes|1-D.*2-D", N_D),
    (r"[Aa]xis (2|-3) is out of bounds|axes don't match array", N_D),
    (r"'numpy.ndarray' object has no attribute '(toarray|todense|tocoo|format|nnz)'", "what has one dimension is dense"),
    (r"object has no attribute '\w+'\. \w", "a name that ours cannot have: the AttributeError names the way"),
    (r"'COO' object has no attribute", "tocoo() gives pydata's COO, not SciPy's"),
    (r"needs fill value 0|got an unexpected keyword argument 'fill_value'", "ours have fill value 0"),
    (r"^'(cvr|bbcsr)'|no attribute 'to(cvr|bbcsr)'", "SciPy's table of its own formats"),
    (r"must have a dtype the array can compute in", "longdouble"),
    (r"Regex pattern did not match", "the words of an error"),
    (r"property '\w+' of '\w+' object has no setter", "assignment: arrays of ours are immutable"),
]

#: Patterns of a test's id -> the reason. Ids are SUITE[KIND]::CLASS::TEST[PARAMETERS].
OUT_OF_SCOPE: list[tuple[str, str]] = [
    (r"test_base.*::test_(minmax_container_type|elementwise_multiply|small_multiplication|str_maxprint)$", OWN),
    (r"test_base.*::test_(constructor1_base|copy|pickle)$", "which arrays share memory, and what a pickle's __dict__ holds"),
    (
        r"test_base.*::test_(minmax_invalid_params|neg|dtype_check|count_nonzero)$",
        "the class of an error, where ours is NumPy's",
    ),
    (r"test_base.*::test_mean_out$", "out must be able to hold the result, as NumPy asks"),
    (
        r"\[(.*-)?(gcxs|dok|DOK|Cvr[12]|Bbcsr[12]|Transposed[12]|csr|csc)(-.*)?\]$",
        "the same case for another of pydata's formats",
    ),
    (r"csgraph.*::test_maximum_flow|linalg.tests.test_pydata.*::test_(splu|spilu)", "what SciPy's result objects hold"),
    (r"linalg.tests.test_pydata.*::test_expm_multiply", "expm_multiply of two sparse matrices"),
    (r"dask.*::test_basic\[<lambda>(9|37)\]|dask.*::test_(tensordot|metadata)$", N_D),
    (r"dask.*::test_html_repr|dask.*::test_basic\[<lambda>45\]", "what Dask knows of pydata's class by its name"),
    (
        r"test_elemwise.*::test_(elemwise_noargs|elemwise_unsupported|elemwise_binary_empty|no_out_upcast)",
        "how pydata's own constructors and functions take arguments",
    ),
    (r"test_base.*::test_size_zero_matrix_arithmetic$", "shapes broadcast, as NumPy's"),
]
