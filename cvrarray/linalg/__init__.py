"""Iterative solvers of linear systems, and decompositions of tall matrices, on the device of the matrix.

Solvers have SciPy's arguments and results.

=============================  ==========================================================================================
:func:`cg`                     A symmetric (Hermitian) positive definite
:class:`CG`                    the same for many right-hand sides, with everything prepared once
:func:`minres`                 A symmetric (Hermitian), definite or not
:func:`bicgstab`               any square A, memory for a few vectors
:func:`gmres`                  any square A, memory for as many vectors as there are iterations between restarts
:func:`lsmr`                   least squares, any A
:func:`jacobi`                 preconditioner: the inverse of the diagonal
:func:`block_jacobi`           the inverses of the blocks on the diagonal
:func:`chebyshev`              a polynomial in A
:func:`multigrid`              smoothed aggregation on A's device; or a hierarchy of pyamg's
:func:`rigid_body_modes`       what multigrid must know of an elastic body
:func:`gram`                   ``A.H @ A``, or the covariance of columns, dense
:func:`mean_var`               means and variances of columns or rows
:func:`svds`                   leading singular values and vectors
:func:`pca`                    principal components
=============================  ==========================================================================================

Sources, which the modules name in full: Hestenes and Stiefel 1952 (cg), Paige and Saunders 1975 (minres), van der Vorst
1992 (bicgstab), Saad and Schultz 1986 (gmres), Fong and Saunders 2011 (lsmr), Saad 2003, algorithm 12.1 (chebyshev),
Brandt 1977 and Vanek, Mandel and Brezina 1996 (multigrid).

A solve has *converged* only if the residual ``b - A @ x``, computed from x itself, meets the tolerance. Every other end
has its own reason, in words (``Solution.reason``) and as SciPy's ``info``:

==========================  ===========  ====================================================================================
reason                      info         meaning
==========================  ===========  ====================================================================================
converged                   0            ``|b - A x| <= max(rtol |b|, atol)``
iterations                  iterations   as many as were asked for; nothing was tested
maxiter                     iterations   the tolerance is not met yet
stagnation                  iterations   the tolerance cannot be met in this precision: the true residual gets no smaller
not positive definite       -1           ``p @ A @ p <= 0`` was met: use :func:`minres` or :func:`gmres`
M not positive definite     -2           ``r @ M @ r < 0`` was met
M singular                  -3           M gives 0 for a residual that is not 0
A not finite                -4           a product with A is not finite: nan or inf in A, or an overflow
M not finite                -5           the same of M
b not finite                -6           nan or inf in b; x is x0
x0 not finite               -7           nan or inf in x0; x is x0
breakdown                   -10          a number that the method divides by is 0
==========================  ===========  ====================================================================================
"""

from .bicgstab import bicgstab
from .cg import CG, cg
from .gmres import gmres
from .gram import gram
from .lsmr import Result, lsmr
from .mean_var import mean_var
from .minres import minres
from .multigrid import multigrid, rigid_body_modes
from .pca import Components, pca
from .preconditioners import block_jacobi, chebyshev, jacobi
from .solution import Solution
from .svds import SVD, svds

__all__ = [
    "CG",
    "SVD",
    "Components",
    "Result",
    "Solution",
    "bicgstab",
    "block_jacobi",
    "cg",
    "chebyshev",
    "gmres",
    "gram",
    "jacobi",
    "lsmr",
    "mean_var",
    "minres",
    "multigrid",
    "pca",
    "rigid_body_modes",
    "svds",
]
