"""What works with what: calls of other libraries with an array of ours, each made, and what became of it.

``python docs/works.py`` writes docs/works.md. A section whose package is not installed keeps what stands there.
``tests/test_works.py`` makes the calls again and compares.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cvrarray

PAGE = Path(__file__).with_name("works.md")
PEERS = Path(__file__).with_name("peer-suites.json")  # what `make peer-suites` has counted

HEAD = """\
# What works with what

`A` is an array of ours, square, with 12 rows of float64; `x` a vector and `X` a matrix of NumPy, `S` the same matrix as a
SciPy CSR. Every call of these tables was made, and what stands beside it is what came of it. "sparse" is an array of ours,
"dense" a NumPy array (on a GPU: CuPy's). An error says what to do instead; nothing becomes dense unless it is asked for by
name.

`make works` writes this page.
"""


class Section(NamedTuple):
    """Calls of one library."""

    title: str
    package: str  # that is needed
    words: str
    lines: tuple[str, ...]
    imports: str = ""


SCIPY = Section(
    "SciPy",
    "scipy",
    "Iterative solvers take `A` as it is. SciPy asks for its own classes in its direct solvers, in `csgraph` and in its "
    "constructors: there give it `A.tocsc()` or `A.tocsr()`.",
    (
        "cg(A, x)",
        "gmres(A, x)",
        "bicgstab(A, x)",
        "minres(A, x)",
        "lgmres(A, x)",
        "lsqr(A, x)",
        "lsmr(A, x)",
        "eigsh(A, k=2)",
        "eigsh(A, k=2, sigma=1.0)",
        "eigs(A, k=2)",
        "svds(A, k=2)",
        "lobpcg(A, X)",
        "onenormest(A)",
        "aslinearoperator(A) @ x",
        "matrix_power(A, 3)",
        "np.linalg.norm(A)",
        "norm(A)",
        "norm(A.tocsr())",
        "expm_multiply(A, x)",
        "expm_multiply(A.aslinearoperator(), x, traceA=A.trace())",
        "spsolve(A, x)",
        "spsolve(A.tocsc(), x)",
        "splu(A)",
        "splu(A.tocsc()).solve(x)",
        "inv(A)",
        "inv(A.tocsc())",
        "expm(A)",
        "expm(A.tocsc())",
        "scipy.sparse.csr_array(A)",
        "A.tocsr()",
        "scipy.sparse.vstack([A, A])",
        "np.vstack([A, A])",
        "scipy.sparse.block_diag([A, A])",
        "scipy.sparse.block_diag([A.tocsr()] * 2)",
        "S + A",
        "S @ A",
        "S @ A.tocsr()",
        "A @ S",
        "csgraph.connected_components(A)",
        "csgraph.connected_components(A.tocsr())",
        "csgraph.dijkstra(A.tocsr())",
        "csgraph.laplacian(A.tocsr())",
        "least_squares(lambda z: A @ z - x, x, jac=lambda z: A)",
        "lsq_linear(A, x)",
        "lsq_linear(A.aslinearoperator(), x)",
        "milp(x, constraints=LinearConstraint(A, 0, x))",
        "milp(x, constraints=LinearConstraint(A.tocsc(), 0, x))",
        "linprog(x, A_ub=A.tocsr(), b_ub=x)",
        "solve_ivp(lambda t, y: -(A @ y), (0, 1), x)",
        "solve_ivp(lambda t, y: -(A @ y), (0, 1), x, method='BDF', jac=A)",
        "solve_ivp(lambda t, y: -(A @ y), (0, 1), x, method='BDF', jac=-A.tocsc())",
    ),
    "import scipy.sparse; from scipy.sparse.linalg import *; from scipy.sparse import csgraph; from scipy.optimize import "
    "LinearConstraint, least_squares, linprog, lsq_linear, milp; from scipy.integrate import solve_ivp",
)
SKLEARN = Section(
    "scikit-learn",
    "sklearn",
    "Every estimator begins with `check_array`, which takes SciPy's classes and dense arrays alone. `A.tocsr()` is the "
    "adapter, on a GPU `A.to_scipy()`. `cvrarray.sklearn` has a `PCA` and a `TruncatedSVD` that take `A` as it is.",
    (
        "TruncatedSVD(2).fit_transform(A)",
        "TruncatedSVD(2).fit_transform(A.tocsr())",
        "cvrarray.sklearn.TruncatedSVD(2).fit_transform(A)",
        "PCA(2).fit_transform(A)",
        "PCA(2, svd_solver='arpack').fit_transform(A.tocsr())",
        "cvrarray.sklearn.PCA(2).fit_transform(A)",
        "make_pipeline(cvrarray.sklearn.PCA(2), KMeans(2, random_state=0)).fit_predict(A)",
        "KMeans(2, random_state=0).fit_predict(A)",
        "KMeans(2, random_state=0).fit_predict(A.tocsr())",
        "normalize(A)",
        "cvrarray.asarray(normalize(A.tocsr()), device='cpu')",
        "mean_variance_axis(A.tocsr(), 0)",
        "cvrarray.linalg.mean_var(A, 0)",
        "Ridge().fit(A, x)",
        "Ridge().fit(A.tocsr(), x).predict(A.tocsr())",
        "LogisticRegression().fit(A.tocsr(), x > 1).predict(A.tocsr())",
        "NMF(2, max_iter=1000).fit_transform(abs(A).tocsr())",
        "A @ Ridge().fit(A.tocsr(), x).coef_",
        "randomized_svd(A, 2, random_state=0)",
        "safe_sparse_dot(A, X)",
    ),
    "from sklearn.cluster import KMeans; from sklearn.decomposition import NMF, PCA, TruncatedSVD; from "
    "sklearn.linear_model import LogisticRegression, Ridge; from sklearn.pipeline import make_pipeline; from "
    "sklearn.preprocessing import normalize; from sklearn.utils.extmath import randomized_svd, safe_sparse_dot; from "
    "sklearn.utils.sparsefuncs import mean_variance_axis; import cvrarray.sklearn",
)
NETWORKX = Section(
    "networkx",
    "networkx",
    "Graphs are made from SciPy's arrays, and give them.",
    (
        "nx.from_scipy_sparse_array(A.tocsr())",
        "nx.from_numpy_array(A.todense())",
        "cvrarray.asarray(nx.to_scipy_sparse_array(nx.path_graph(4)), device='cpu')",
    ),
    "import networkx as nx",
)
PYDATA = Section(
    "pydata/sparse",
    "sparse",
    "`C` is a `COO`.",
    (
        "A.tocoo()",
        "cvrarray.asarray(C, device='cpu')",
        "A @ C",
        "A + C",
        "C + A",
        "A * C",
        "C @ A",
        "sparse.asarray(A)",
        "sparse.asarray(A.tocoo())",
        "sparse.tensordot(C, A.tocoo(), 1)",
    ),
    "import sparse; C = sparse.COO.from_scipy_sparse(S)",
)
DASK = Section(
    "Dask",
    "dask",
    "`D` is `cvrarray.to_dask(A)`; each line is computed. What Dask's own rules cannot do, `cvrarray.dask` does.",
    (
        "D @ x",
        "D @ X",
        "x @ D",
        "D.T @ x",
        "D + D",
        "2 * D",
        "D * D",
        "abs(D)",
        "da.sin(D)",
        "D > 1",
        "D[2:5]",
        "D[:, 3]",
        "D[[1, 3]]",
        "D.T",
        "D.sum(axis=0)",
        "D.mean(axis=1)",
        "D.max()",
        "D.min(axis=0)",
        "D.any(axis=1)",
        "D.prod(axis=0)",
        "D.argmax(axis=1)",
        "D.argmin()",
        "da.nansum(D)",
        "da.nanmax(D, axis=0)",
        "da.count_nonzero(D)",
        "D @ D",
        "cvrarray.dask.matmul(D, D)",
        "cvrarray.dask.matmul(D, D.T)",
        "D.std()",
        "cvrarray.dask.std(D)",
        "D.var(axis=0)",
        "cvrarray.dask.var(D, axis=0)",
        "da.vdot(D, D)",
        "cvrarray.dask.vdot(D, D)",
        "da.einsum('ij,j->i', D, x)",
        "da.einsum('ij,ij->', D, D)",
        "da.tensordot(D, X, axes=1)",
        "da.where(D > 1, D, 0)",
        "da.tril(D)",
        "da.triu(D, 1)",
        "da.zeros_like(D)",
        "da.ones_like(D)",
        "da.full_like(D, 3)",
        "da.repeat(D, 2, axis=0)",
        "da.tile(D, (2, 1))",
        "da.roll(D, 1, axis=0)",
        "da.pad(D, 1)",
        "da.diff(D, axis=0)",
        "da.concatenate([D, D])",
        "da.block([[D, D]])",
        "da.stack([D, D])",
        "da.diagonal(D)",
        "da.linalg.norm(D)",
        "D.rechunk((3, 4))",
        "D.astype('float32')",
        "D.map_blocks(lambda chunk: 2 * chunk)",
        "D.round(1)",
        "D.clip(-1, 1)",
        "da.isnan(D)",
        "D + 1",
        "da.exp(D)",
    ),
    "import dask, dask.array as da; D = cvrarray.to_dask(A, chunks=5); dask.config.set(scheduler='synchronous')",
)
TORCH = Section(
    "PyTorch",
    "torch",
    "`t` is a tensor, `v` are the values as one that wants a gradient. Tensors on a GPU go with arrays on that GPU.",
    (
        "A @ t",
        "A @ torch.stack([t, t], 1)",
        "t @ A",
        "A.T @ t",
        "torch.compile(lambda t: A @ t, backend='eager')(t)",
        "cvrarray.torch.matmul(A, t)",
        "cvrarray.torch.matmul(A, t, v)",
        "torch.autograd.grad(cvrarray.torch.matmul(A, t, v).sum(), v)[0]",
        "torch.compile(cvrarray.torch.matmul, backend='aot_eager', fullgraph=True)(A, t, v)",
        "torch.matmul(A, t)",
        "A * t",
    ),
    "import torch; t = torch.ones(12, dtype=torch.float64); v = torch.tensor(np.array(A.data), requires_grad=True)",
)
SECTIONS = (SCIPY, SKLEARN, NETWORKX, PYDATA, DASK, TORCH)

#: How a function of NumPy's is called, in the order in which it is tried: the first call that NumPy itself takes.
PATTERNS = (
    "{f}(A)",
    "{f}(A, A)",
    "{f}(A, axis=0)",
    "{f}(A, 1)",
    "{f}(A, 2, axis=0)",
    "{f}(A, [1, 3], axis=0)",
    "{f}([A, A])",
    "{f}(A, x)",
    "{f}('ij,jk->ik', A, A)",
    "{f}(A, -1, 1)",
    "{f}(A, 'float32')",
    "{f}(A, (6, 24))",
    "{f}(A, 0, 1)",
    "{f}(A, A, A)",
    "{f}(A, [0], [1])",
    "{f}(A > 1, A)",
    "{f}(1, A)",
    "{f}([True, False], A, axis=0)",
    "{f}(np.sum, 0, A)",
    "{f}(A, A, 1)",
    "{f}(x, A)",
)

#: Functions of NumPy's that one call does not describe.
MORE = (
    "A @ x",
    "A @ X",
    "x @ A",
    "A @ A",
    "A.T @ x",
    "A + A",
    "A - A",
    "A * A",
    "A / 2",
    "A ** 2",
    "2 * A",
    "A + 1",
    "A + X[:, :1]",
    "A * x",
    "A > 1",
    "A == 0",
    "A != A",
    "A == None",
    "-A",
    "abs(A)",
    "~A",
    "A[3]",
    "A[3, 1]",
    "A[2:5]",
    "A[::-2, 1:4]",
    "A[:, 3]",
    "A[[1, 3]]",
    "A[A > 1]",
    "A[[[0], [2]], [[1, 3]]]",
    "A[np.ix_([0, 2], [1, 3])]",
    "A[None]",
    "np.sum(A, axis=0)",
    "np.sum(A, where=A > 1)",
    "np.where(A > 1, A, 0)",
    "np.where(A > 1, 1, 2)",
    "np.add.reduce(A)",
    "np.maximum.accumulate(A)",
    "np.add(A, 1, out=X12)",
    "np.einsum('ij,j->i', A, x)",
    "np.einsum('ij,jk,k->i', A, A, x)",
    "np.einsum('ij,kl->ijkl', A, A)",
    "np.tensordot(A, X, 1)",
    "np.linalg.norm(A, axis=0)",
    "np.linalg.norm(A, 2)",
    "np.nditer(A)",
    "list(A)",
    "len(A)",
    "bool(A)",
    "float(A)",
    "1.0 in A",
)


def names_of_numpy() -> list[str]:
    """Ufuncs, and functions that ask NumPy's protocol, of numpy, numpy.linalg and numpy.fft: each once."""
    found: dict[Any, str] = {}
    for prefix, module in (("np", np), ("np.linalg", np.linalg), ("np.fft", np.fft)):
        for name in dir(module):
            value = getattr(module, name)
            if isinstance(value, np.ufunc) or hasattr(value, "_implementation"):
                found.setdefault(value, f"{prefix}.{name}")
    return sorted(found.values())


def namespace(imports: str = "") -> dict[str, Any]:
    """What the calls may name."""
    rng = np.random.default_rng(1)
    dense = rng.integers(1, 5, (12, 12)) * (rng.random((12, 12)) < 0.2) * 1.0
    dense = dense + dense.T + 8 * np.eye(12)
    A = cvrarray.CVRArray(dense)
    names = {
        "np": np,
        "cvrarray": cvrarray,
        "A": A,
        "S": A.tocsr(),
        "x": np.arange(12.0) % 3,
        "X": rng.random((12, 2)),
        "X12": np.zeros((12, 12)),
    }
    exec(imports, names)
    return names


def came_of(call: str, names: dict[str, Any]) -> str:
    """What a call gives, in words."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return described(eval(call, names))
    except Exception as error:
        while error.__cause__ is not None and "A.to" not in str(error):  # what SciPy raises from our error says less
            error = error.__cause__
        words = re.sub(r"\s+", " ", str(error)).replace("|", "\\|").replace("<", "&lt;")
        return f"{type(error).__name__.lstrip('_')}: {words[:200]}"


def described(value: Any) -> str:
    if hasattr(value, "_canonical_csr"):
        return "sparse"
    kind = type(value)
    if hasattr(value, "__dask_graph__"):
        return described(value.compute())
    if isinstance(value, np.ndarray) and value.ndim:
        return f"dense, {value.ndim}-D"
    if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)):
        return "a number"
    if kind in (tuple, list):
        parts = list(dict.fromkeys(map(described, value)))
        return f"{kind.__name__} of {', '.join(parts)}" if parts else kind.__name__
    return f"`{kind.__module__.partition('.')[0]}.{kind.__name__}`" if kind.__module__ != "builtins" else f"`{kind.__name__}`"


def rows_of_numpy() -> Iterator[tuple[str, str]]:
    """(call, what came of it) of operators and of every function."""
    names = namespace()
    plain = names | {"A": names["A"].todense()}
    for call in MORE:
        yield call, came_of(call, names)
    for name in names_of_numpy():
        if isinstance(eval(name, names), np.ufunc) and eval(name, names).nin == 2:
            calls = [f"{name}(A, A)", f"{name}(A, 2)", f"{name}(2, A)", f"{name}(A, x)"]
            yield from ((call, came_of(call, names)) for call in calls if _is_taken(call, plain))
            continue
        call = next((c for c in (pattern.format(f=name) for pattern in PATTERNS) if _is_taken(c, plain)), None)
        if call is not None:
            yield call, came_of(call, names)


def _is_taken(call: str, plain: dict[str, Any]) -> bool:
    """Whether NumPy takes the call with a dense array; what it writes into files goes."""
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            warnings.catch_warnings(),
            np.errstate(all="ignore"),
        ):
            warnings.simplefilter("ignore")
            eval(call, {**plain, "A": plain["A"].copy()})
    except Exception:
        return False
    return True


def rows(section: Section) -> Iterator[tuple[str, str]]:
    """(call, what came of it) of a section."""
    names = namespace(section.imports)
    for call in section.lines:
        yield call, came_of(call, names)


def table(found: Iterator[tuple[str, str]]) -> str:
    lines = [f"| `{call}` | {what} |" for call, what in found]
    return "\n".join(["| call | |", "|---|---|", *lines])


def section_of_numpy() -> str:
    """NumPy's section as Markdown."""
    found = list(rows_of_numpy())
    works = sum("Error" not in what for _, what in found)
    words = f"{len(found)} operations: {works} work, {len(found) - works} raise an error that names the way."
    return f"## NumPy\n\n{words}\n\n{table(iter(found))}\n"


def text(section: Section) -> str:
    """A section as Markdown."""
    return f"## {section.title}\n\n{section.words}\n\n{table(rows(section))}\n"


def section_of_peers() -> str:
    """What the test suites of other libraries found, as Markdown."""
    found = json.loads(PEERS.read_text())
    passed = sum(counts["passed"] for counts in found.values())
    failed = sum(counts["failed"] for counts in found.values())
    reasons = sum((Counter(counts["out of scope"]) for counts in found.values()), Counter[str]())
    return "\n".join(
        [
            "## Their own test suites",
            "",
            "`make peer-suites` runs tests that SciPy, pydata/sparse and Dask ship in their wheels against our arrays: CVR, "
            "BBCSR and a transposed view, each case with each of them (with one of them in suites that have a star). Suites of "
            "functions that take `A.tocsr()` or `A.tocsc()` are left out. "
            f"**{passed:,} cases pass, {'none fails' if not failed else f'{failed:,} fail'}.** CuPy's wheel ships no tests.",
            "",
            "| suite | passed | failed | out of scope |",
            "|---|---|---|---|",
            *(_row(suite, counts) for suite, counts in found.items()),
            "",
            "Out of scope is what asks for something that arrays of ours are not, and what a peer's tests leave out "
            "themselves:",
            "",
            "| reason | cases |",
            "|---|---|",
            *(f"| {reason.replace('|', chr(92) + '|')} | {count:,} |" for reason, count in reasons.most_common()),
            "",
        ]
    )


def _row(suite: str, counts: dict[str, Any]) -> str:
    out_of_scope = sum(counts["out of scope"].values())
    star = "\\*" if counts.get("each once") else ""
    return f"| {suite}{star} | {counts['passed']:,} | {counts['failed']} | {out_of_scope:,} |"


def standing(title: str) -> str:
    """A section as it stands on the page."""
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", PAGE.read_text() if PAGE.exists() else "", re.M | re.S)
    return found[0].rstrip() + "\n" if found else ""


def is_installed(package: str) -> bool:
    """Whether a section's package can be imported."""
    return importlib.util.find_spec(package) is not None


def page(make: Callable[[Section], str] = text) -> str:
    """The page; sections whose package is missing as they stand."""
    sections = [make(section) if is_installed(section.package) else standing(section.title) for section in SECTIONS]
    peers = [section_of_peers()] if PEERS.exists() else []
    return "\n".join([HEAD, section_of_numpy(), *(part for part in sections if part), *peers])


if __name__ == "__main__":
    PAGE.write_text(page())
