"""The estimators of scikit-learn's conventions: its own checks, its pipelines, and its results."""

from __future__ import annotations

import numpy as np
import pytest
from checks import get
from scipy.sparse import csr_array

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import sklearn.decomposition
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import cvrarray
from cvrarray.sklearn import PCA, TruncatedSVD

PAIRS = [
    (PCA(3), sklearn.decomposition.PCA(3, svd_solver="full")),
    (TruncatedSVD(3), sklearn.decomposition.TruncatedSVD(3, algorithm="arpack")),
]


def matrix(shape=(200, 30)) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.random(shape) < 0.2) * rng.standard_normal(shape) * np.arange(1, shape[1] + 1)


@pytest.mark.parametrize("estimator", [PCA(), TruncatedSVD()], ids=["PCA", "TruncatedSVD"])
def test_checks_of_scikit_learn(estimator):
    """All of them; the one for other array libraries is skipped by scikit-learn itself, unless it is asked for."""
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    assert len(results) > 30
    assert [r["check_name"] for r in results if r["status"] != "passed"] in ([], ["check_array_api_input"])


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["PCA", "TruncatedSVD"])
def test_results_of_scikit_learn(ours, theirs, device, tmp_path):
    dense = matrix()
    A = cvrarray.CVRArray(dense, device=device)
    cvrarray.to_store(A, tmp_path / "s", chunks=2000, device=device)
    wanted = theirs.fit_transform(dense)
    for X in (
        A,
        cvrarray.Stored(tmp_path / "s", device=device),
        cvrarray.to_dask(A, chunks=50, device=device),
        csr_array(dense),
    ):
        found = clone(ours)
        np.testing.assert_allclose(get(found.fit_transform(X)), wanted, atol=1e-8)
        for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
            np.testing.assert_allclose(get(getattr(found, name)), getattr(theirs, name), atol=1e-8, err_msg=name)
            np.testing.assert_allclose(get(getattr(clone(ours).fit(X), name)), getattr(theirs, name), atol=1e-6, err_msg=name)
        scores = found.transform(X)
        np.testing.assert_allclose(get(scores), wanted, atol=1e-8)
        np.testing.assert_allclose(get(found.inverse_transform(scores)), theirs.inverse_transform(wanted), atol=1e-8)
        assert found.converged_
        assert found.get_feature_names_out().tolist() == theirs.get_feature_names_out().tolist()


def test_pipelines_and_searches():
    A = cvrarray.CVRArray(matrix(), device="cpu")
    pipeline = make_pipeline(PCA(5), KMeans(3, random_state=0, n_init=1))
    assert pipeline.fit_predict(A).shape == (200,)
    search = GridSearchCV(
        make_pipeline(TruncatedSVD(), KMeans(3, random_state=0, n_init=1)), {"truncatedsvd__n_components": [2, 4]}
    )
    assert search.fit(A.to_scipy()).best_params_


@pytest.mark.parametrize("estimator", [PCA(2), TruncatedSVD(2)], ids=["PCA", "TruncatedSVD"])
def test_float32_stays(estimator):
    A = cvrarray.CVRArray(matrix().astype(np.float32), device="cpu")
    scores = estimator.fit_transform(A)
    found = [scores, estimator.components_, estimator.transform(A), estimator.inverse_transform(scores)]
    assert {array.dtype for array in found} == {np.dtype(np.float32)}


def test_names_of_columns():
    """Those of a data frame are forgotten by the next fit; those of the components come out."""
    pandas = pytest.importorskip("pandas")
    A, frame = cvrarray.CVRArray(matrix(), device="cpu"), pandas.DataFrame(matrix()).rename(columns=str)
    found = PCA(2).set_output(transform="pandas")
    assert found.fit_transform(frame).columns.tolist() == ["pca0", "pca1"]
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        found.transform(A)
    assert found.fit(A).transform(A).shape == (200, 2)
    assert not hasattr(found, "feature_names_in_")


def test_other_columns_are_refused():
    found = PCA(2).fit(cvrarray.CVRArray(matrix(), device="cpu"))
    with pytest.raises(ValueError, match="X has 7 features, but PCA is expecting 30 features as input"):
        found.transform(cvrarray.CVRArray(np.ones((4, 7)), device="cpu"))


@pytest.mark.parametrize("n_components", [0.9, "mle", 0, 31])
@pytest.mark.parametrize("estimator", [PCA, TruncatedSVD])
def test_n_components_is_an_integer(estimator, n_components):
    with pytest.raises(ValueError, match=rf"n_components must be an integer from 1 to 30,.*got {n_components!r}"):
        estimator(n_components).fit(cvrarray.CVRArray(matrix(), device="cpu"))
