"""Mutated and forged inputs, thrown at the package in processes that may die: ``make fuzz FUZZ_S=60``.

=======================  =====================================================================================
:mod:`fuzz.edits`        an input is a *recipe*: a base and a list of edits, all of it JSON
:mod:`fuzz.judge`        what may happen to an input: it is refused by name, or taken for what it says
:mod:`fuzz.meaning`      what an input says, in plain Python that shares no code with the package
:mod:`fuzz.archive`      zips with right checksums and aligned members
:mod:`fuzz.driver`       children with limited memory; what crashes, hangs, eats memory or is wrong; minimised
``fuzz.kinds``           a module a kind of input
=======================  =====================================================================================

A kind is a module with ``BASES`` (names), ``propose(rng, base) -> edits``, and ``examine(base, edits, folder)``, which
makes the input and judges what the package does with it. The number of an input decides all of it: a run can be
repeated, and gone on with. What fails is reduced to as few edits as still fail, and stays in ``tests/regressions`` as a
recipe.
"""
