"""What a user's program may rely on: mypy checks it (``make lint``), nobody runs it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np

import cvrarray
from cvrarray import BBCSRArray, CVRArray
from cvrarray.array.base import SparseArray
from cvrarray.array.format import FormatArray
from cvrarray.array.transposed import TransposedArray
from cvrarray.core.arrays import NumpyArray


def products(A: CVRArray, x: NumpyArray) -> None:
    """Attributes have their types, and a product takes arrays."""
    assert_type(A.shape, tuple[int, int])
    assert_type(A.ndim, int)
    assert_type(A.nnz, int)
    assert_type(A.nbytes, int)
    assert_type(A.device, str)
    assert_type(A.n_lanes, int)
    assert_type(A.n_chunks, int)
    assert_type(A.plan, str | None)
    A.matvec(x, out=x, alpha=2.0, beta=1.0)
    assert_type(A @ x, NumpyArray)
    assert_type(A @ np.ones((3, 2)), NumpyArray)
    assert_type(A @ A, SparseArray)
    A.check()
    assert_type(A.to_device("cpu"), CVRArray)


def array_code(A: CVRArray, B: BBCSRArray) -> None:
    """Arrays stay what they are where the format does."""
    assert_type(2 * A, CVRArray)
    assert_type(A * 2.0, CVRArray)
    assert_type(-B, BBCSRArray)
    assert_type(A + A, SparseArray)
    assert_type(A + B, SparseArray)
    assert_type(A.T, TransposedArray)
    assert_type(A.T @ np.ones(3), NumpyArray)
    assert_type(A.copy(), CVRArray)
    assert_type(A == B, SparseArray)


def conversions(path: Path) -> None:
    """Constructors and functions take what they say, and give it."""
    A = assert_type(cvrarray.asarray(np.eye(3), format="cvr", device="cpu", n_lanes=4), CVRArray)
    assert_type(cvrarray.asarray(np.eye(3), format="bbcsr", block_size=3), BBCSRArray)
    assert_type(cvrarray.asarray(np.eye(3), device="cpu"), FormatArray)
    cvrarray.save(path, A)
    cvrarray.load(str(path), verify=False).tocsr()
    assert_type(cvrarray.read(path, group="X", format="auto", device="cpu").nnz, int)
    assert_type(cvrarray.Stored(path) * np.ones((3, 1)) / 2, cvrarray.Stored)
    assert_type(BBCSRArray(np.eye(3), block_size=3).fill_ratio, float)
    assert_type(cvrarray.statistics(np.eye(3)).block_fill, dict[int, float])
    cvrarray.generate.poisson7(3, dtype=np.float32)


def mistakes() -> None:
    """A type checker notices these: an ignore that is not needed is an error."""
    CVRArray(np.eye(3), n_lanes="four")  # type: ignore[arg-type]
    BBCSRArray(np.eye(3), n_chunks=4)  # type: ignore[call-arg]
    cvrarray.asarray(np.eye(3), format=3)  # type: ignore[call-overload]
    cvrarray.asarray(np.eye(3), devise="cpu")  # type: ignore[call-overload]
    cvrarray.csr_matrix  # type: ignore[attr-defined]  # noqa: B018
