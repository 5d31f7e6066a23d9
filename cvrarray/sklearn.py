"""Estimators of scikit-learn's conventions for tall matrices: :class:`PCA` and :class:`TruncatedSVD`.

They take arrays of ours, stores on disk and dask arrays of our chunks as they are, and every matrix that scikit-learn takes.
They stand in its pipelines, are cloned, and get their parameters from its searches.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from .core.extensions import optional
from .linalg import tall
from .linalg.gram import Columns
from .linalg.mean_var import mean_var
from .linalg.pca import pca
from .linalg.svds import count_of, svds

with optional("cvrarray.sklearn", "scikit-learn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["PCA", "TruncatedSVD"]


class _Decomposition(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators share: `fit` sets ``components_``, and ``mean_`` where columns are centred."""

    def __init__(self, n_components: int | None = 2, *, tol: float | None = None, random_state: Any = 0) -> None:
        self.n_components, self.tol, self.random_state = n_components, tol, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components of the rows of `X`; `y` is ignored."""
        self._fit(self._matrix(X, reset=True), scores=False)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """:meth:`fit`, and the rows of `X` along the components: (n_samples, n_components), where `X` lies."""
        return self._fit(self._matrix(X, reset=True), scores=True)

    def transform(self, X: Any) -> Any:
        """The rows of `X` along the components: (n_samples, n_components), where `X` lies."""
        check_is_fitted(self)
        A = self._matrix(X, reset=False)
        with tall.device(A).use():
            along = tall.Centred(A, Columns(getattr(self, "mean_", None))).times(self.components_.T)
            return along.astype(np.result_type(A.dtype, self.components_.dtype), copy=False)

    def inverse_transform(self, X: Any) -> Any:
        """Dense rows (n_samples, n_features) from what stands along the components."""
        check_is_fitted(self)
        rows = X @ self.components_
        return rows + self.mean_.astype(rows.dtype) if hasattr(self, "mean_") else rows

    def _matrix(self, X: Any, reset: bool) -> Any:
        """`X` as a matrix for a sweep, once scikit-learn's rules allow it."""
        if tall.is_ours(X):
            rules: dict[str, Any] = {"skip_check_array": True}
        else:
            rules = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": 2 if reset else 1}
        return tall.matrix(validate_data(self, X, reset=reset, **rules))

    def _arguments(self) -> dict[str, Any]:
        return {"tol": self.tol, "seed": check_random_state(self.random_state).randint(2**31)}

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class PCA(_Decomposition):
    """Principal components, as ``sklearn.decomposition.PCA``, by :func:`cvrarray.linalg.pca`: the matrix stays sparse.

    Parameters
    ----------
    n_components : int, optional
        Default: the smaller of n_samples and n_features. There are no fractions of the variance and no ``"mle"``.
    tol : float, optional
        Of the residuals: see :func:`cvrarray.linalg.svds`.
    random_state : int, RandomState instance or None
        Where the first vectors come from.

    Attributes
    ----------
    components_ : (n_components, n_features) array
    explained_variance_, explained_variance_ratio_, singular_values_ : (n_components,) arrays
    mean_ : (n_features,) array
    n_components_, n_samples_, n_features_in_ : int
    converged_ : bool
        Whether all residuals are within the tolerance.

    Examples
    --------
    >>> from cvrarray.sklearn import PCA
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0], [4, 0, 0]])
    >>> PCA(n_components=1).fit(A).explained_variance_ratio_.round(2)
    array([0.72])
    """

    def __init__(self, n_components: int | None = None, *, tol: float | None = None, random_state: Any = 0) -> None:
        super().__init__(n_components, tol=tol, random_state=random_state)

    def _fit(self, A: Any, scores: bool) -> Any:
        k = count_of(min(A.shape) if self.n_components is None else self.n_components, A.shape, "n_components")
        found = pca(A, k, scores=scores, **self._arguments())
        self.components_, self.mean_, self.n_components_, self.n_samples_ = found.components, found.mean, k, A.shape[0]
        self.explained_variance_, self.explained_variance_ratio_ = found.explained_variance, found.explained_variance_ratio
        self.singular_values_, self.converged_ = found.svd.s, found.svd.converged
        return found.scores


class TruncatedSVD(_Decomposition):
    """Leading singular vectors without centring, as ``sklearn.decomposition.TruncatedSVD``, by :func:`cvrarray.linalg.svds`.

    Parameters
    ----------
    n_components : int
    tol, random_state
        As of :class:`PCA`.

    Attributes
    ----------
    components_ : (n_components, n_features) array
    explained_variance_, explained_variance_ratio_, singular_values_ : (n_components,) arrays
    n_features_in_ : int
    converged_ : bool

    Examples
    --------
    >>> from cvrarray.sklearn import TruncatedSVD
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0], [4, 0, 0]])
    >>> TruncatedSVD(n_components=1).fit(A).singular_values_.round(2)
    array([4.16])
    """

    n_components: int

    def _fit(self, A: Any, scores: bool) -> Any:
        k = count_of(self.n_components, A.shape, "n_components")
        mean, variance = mean_var(A, 0)
        found = svds(A, k, return_singular_vectors=True if scores else "vh", **self._arguments())
        with tall.device(A).use():
            s = found.s.astype(np.float64)
            along = s**2 / A.shape[0] - abs(mean @ found.Vt.conj().T) ** 2  # the scores' mean squares less their means'
            total = variance.sum()
            self.explained_variance_ = along.clip(0)
            self.explained_variance_ratio_ = self.explained_variance_ / total if bool(total > 0) else along * 0
            self.components_, self.singular_values_, self.converged_ = found.Vt, found.s, found.converged
            return found.U * found.s if scores else None
