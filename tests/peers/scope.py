"""What of the peers' suites is out of scope, each with its reason."""

from __future__ import annotations

#: Tests of `sparse` that are about the arguments of its own constructors and functions.
CONSTRUCTORS = (
    "large_(reshape|concat_stack|sum)|concatenate_mixed|create_with_lists_of_tuples|scipy_sparse_interface|cache_csr|caching|"
    "reduce_narrow_idx_dtype|add_many_sparse_arrays|random_(invalid_density_and_nnz|idx_dtype)|scalar_shape_construction|"
    "one_arg_where_dense|invalid_(attrs_error|iterable_error|device)|from_iter_\\w+|initialization|coords_\\w+_bounds\\w*|"
    "setting_into_numpy_slice|prune_coo|diagonalize|flatten_(fortran_\\w+|unsupported_order)|asnumpy|coo_valerr|array_as_shape|"
    "unique_\\w+_nan_fill_value|input_validation|sort\\w*|unstack_\\w+|(repeat|tile)_invalid_input|diff_invalid_type|"
    "kron|kron_spmatrix|tensordot|small_values|asarray|format|np_array|failed_densification|warn_on_too_dense"
)
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
    (r"'numpy\.\w+' object has no attribute 'todense'", "what has no dimension is a number"),
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
        r"(numba_backend|test_pydata_sparse|dask).*\[(.*-)?(gcxs|dok|DOK|Cvr[12]|Bbcsr[12]|Transposed[12]|csr|csc)(-.*)?\]$",
        "the same case for another of pydata's formats",
    ),
    (
        r"linalg.tests.test_pydata_sparse.*::test_lsqr",
        "two solutions that stop at 1e-6 are compared to 1e-5: plain sums in 3 of 10 orders fail too, exact ones do not",
    ),
    (r"test_pydata_sparse\[transposed\].*::test_eigs", "the class of a transposed view makes views"),
    (
        r"test_arpack.*::test_real_eigs_real_k_subset",
        "eigs(sigma=) solves with gmres for any operator, in float32 to fewer digits than asked for: SciPy's own too",
    ),
    (r"linalg.tests.test_pydata.*::test_(splu|spilu)", "what SciPy's result objects hold"),
    (r"linalg.tests.test_pydata.*::test_expm_multiply", "expm_multiply of two sparse matrices"),
    (r"dask.*::test_basic\[<lambda>(9|37)\]|dask.*::test_(tensordot|metadata)$", N_D),
    (r"dask.*::test_html_repr|dask.*::test_basic\[<lambda>45\]", "what Dask knows of pydata's class by its name"),
    (
        r"test_elemwise.*::test_(elemwise_noargs|elemwise_unsupported|elemwise_binary_empty|no_out_upcast)",
        "how pydata's own constructors and functions take arguments",
    ),
    (
        rf"numba_backend.tests.test_(coo|dot|array_function).*::test_({CONSTRUCTORS})(\[|$)",
        "how pydata's own constructors and functions take arguments",
    ),
    (
        r"numba_backend.tests.test_array_function.*::test_\w*(returns_0d_array|returns_nd_array|keepdims_full_reduction)",
        "what is reduced is dense",
    ),
    (r"numba_backend.tests.test_dot.*::test_matmul_nan_warnings", "products of nan and inf warn of nothing"),
    (r"numba_backend.tests.test_dot.*::test_matmul\[.*a_shape6-b_shape6", "what has one dimension is dense"),
    (r"test_base.*::test_size_zero_matrix_arithmetic$", "shapes broadcast, as NumPy's"),
]
