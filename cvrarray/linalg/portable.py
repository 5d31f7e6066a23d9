"""Conjugate gradients in array code, for NumPy and CuPy alike: where a device has no engine of its own, or calls for callbacks."""

from __future__ import annotations

from typing import Any

from .iteration import A_NAN, M_NAN, M_NOT_DEFINITE, M_SINGULAR, NOT_DEFINITE, Method


class Engine(Method):
    """See :mod:`cvrarray.linalg.system`."""

    works_with = ("p", "q", "z")

    p: Any
    q: Any
    z: Any

    def start(self) -> None:
        """The first direction is the preconditioned residual."""
        z = self.precondition(self.r, self.z)
        self.rz = self.v.real_dot(self.r, z)
        self._check()
        self.p[...] = z

    def step(self, x: Any) -> Any:
        """See :class:`Method`."""
        v, xp = self.v, self.xp
        self.times(self.p, self.q)
        bend = v.real_dot(self.p, self.q)
        self.stop(~xp.isfinite(bend), A_NAN)
        if self.is_tested:
            self.stop(bend <= 0, NOT_DEFINITE)
        factor = self.ratio(self.rz, bend)
        v.add(factor, self.p, x)
        v.add(-factor, self.q, self.r)
        norm = v.norm(self.r)
        z = self.precondition(self.r, self.z)
        rz = v.real_dot(self.r, z)
        v.combine(xp.ones(v.columns), z, self.ratio(rz, self.rz), self.p, self.p)
        self.rz = rz
        return norm

    def settle(self) -> None:
        """See :class:`Method`."""
        self._check()

    def _check(self) -> None:
        if self.is_tested:
            self.stop(~self.xp.isfinite(self.rz), M_NAN)
            self.stop(self.rz < 0, M_NOT_DEFINITE)
            self.stop(self.rz == 0, M_SINGULAR)
