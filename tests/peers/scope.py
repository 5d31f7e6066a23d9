"""What of the peers' suites is out of scope, each with its reason."""

from __future__ import annotations

#: What a refusal of ours says -> the reason: a test that ends in one asks for something that arrays of ours are not.
REFUSALS = [
    (r"is immutable|arrays of ours are immutable", "assignment: arrays of ours are immutable"),
    (r"Call todense\(\)|does not become dense|would become dense|so the result is dense", "the result would be dense"),
    (r"must have 2 dimensions|has 2 dimensions|of 3 dimensions|at most 2 dimensions", "ours have two dimensions"),
]

#: Patterns of a test's id -> the reason. Ids are SUITE[KIND]::CLASS::TEST[PARAMETERS].
OUT_OF_SCOPE: list[tuple[str, str]] = []
