"""The steps from a kernel to machine code: Numba's, but for what kernels do not need, or what was done before.

A kernel is compiled for many types, and so is each function that it calls. What does not depend on the types is done
once: reading the bytecode, and all that Numba does before it looks types up. After that kernels need five steps, not
a dozen: they have no array expressions, no closures, and no references to count. LLVM's optimiser runs once, on a
whole kernel, and not on its parts before.

It derives from classes that Numba may change. So a version of Numba that it was not tried with compiles by itself: to
the same results, in twice the time.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Any

import numba
from numba import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, PassManager
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import BaseNativeLowering, NoPythonBackend, NopythonTypeInference, PreLowerStripPhis
from numba.core.typing import Context
from numba.core.untyped_passes import InlineClosureLikes

from .lowering import Lowering

TRIED = (0, 62), (0, 68)  #: the first and the last version of Numba that this was tried with
IS_TRIED = TRIED[0] <= tuple(numba.version_info[:2]) <= TRIED[1]
KNOWN: dict[Any, Any] = {}  #: signatures of calls, and types of attributes
UNTYPED: dict[Any, Any] = {}  #: functions as Numba has them before it looks types up


@register_pass(mutates_CFG=True, analysis_only=False)
class WithoutTypes(FunctionPass):
    """All of Numba's steps before types are looked up. The steps after it change nothing in what it gives."""

    _name = "cvrarray_without_types"

    def __init__(self) -> None:  # abstract in Numba
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Take the function from :data:`UNTYPED`, or put it there."""
        key = state.func_id.func, state.func_id.func.__code__, *map(_known_without_types, state.args)
        if key not in UNTYPED:
            steps = DefaultPassBuilder.define_untyped_pipeline(state)
            steps.passes[:] = [step for step in steps.passes if step[0] is not InlineClosureLikes]
            steps.finalize()
            steps.run(state)
            UNTYPED[key] = state.func_ir
        state.func_ir = copy(UNTYPED[key])
        state.func_ir.func_id = state.func_id  # from which names of compiled functions are made
        state.nargs = state.func_ir.arg_count
        return True


def _known_without_types(kind: types.Type) -> Any:
    """What of an argument's type decides which branches are left before types are looked up."""
    if isinstance(kind, types.BaseTuple):
        return "length", kind.count
    if isinstance(kind, types.Array):
        return "ndim", kind.ndim
    return kind if isinstance(kind, types.NoneType | types.Omitted | types.Literal) else None


@register_pass(mutates_CFG=True, analysis_only=False)
class StripPhis(PreLowerStripPhis):
    """Numba's step, without looking for what is alive where: where no references are counted, nothing asks for it."""

    _name = "cvrarray_strip_phis"

    def run_pass(self, state: Any) -> bool:
        """Put assignments in place of phi nodes."""
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(BaseNativeLowering):
    """Numba's step from typed code to LLVM's, with :class:`.lowering.Lowering`."""

    _name = "cvrarray_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        """What writes the code."""
        return Lowering


class Library(JITCodeLibrary):
    """A kernel's machine code. Where no references are counted there is nothing to optimise before all is linked."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


class Typing(Context):
    """Numba's types, which remember what was looked up: else the many ways to do it are tried again for each kernel."""

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """The signature of a call of a function of Numba's, or of an intrinsic."""
        if kws or not isinstance(func, types.Function | types.NumberClass):
            return super().resolve_function_type(func, args, kws)
        key = func, *args
        if key not in KNOWN:
            KNOWN[key] = super().resolve_function_type(func, args, kws)
        return KNOWN[key]

    def resolve_getattr(self, typ: Any, attr: str) -> Any:
        """The type of an attribute of a module or of an argument."""
        if not isinstance(typ, types.Module | types.BaseTuple):
            return super().resolve_getattr(typ, attr)
        if (typ, attr) not in KNOWN:
            KNOWN[typ, attr] = super().resolve_getattr(typ, attr)
        return KNOWN[typ, attr]


@cache
def _typing(context: Context) -> Typing:
    """The same types as Numba's `context`."""
    typing = Typing.__new__(Typing)  # without __init__, which would register all of Numba's types anew
    typing.__dict__.update(context.__dict__)
    return typing


class Options(Flags):
    """Numba's options of a function, which it looks types up by thousands of times."""

    __slots__ = ("_number",)

    def __hash__(self) -> int:
        if not hasattr(self, "_number"):
            self._number = super().__hash__()
        return self._number

    def copy(self) -> Options:
        """What Numba has at hand while it compiles, and only looks at: one object for all that are equal."""
        same = Options(self)
        return OPTIONS.setdefault(same, same)


OPTIONS: dict[Options, Options] = {}


class Compiler(CompilerBase):
    """For ``njit(pipeline_class=...)``, of functions that count no references; Numba's own in versions not tried."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if not IS_TRIED:
            return
        self.state.flags = Options(self.state.flags)
        self.state.typingctx = _typing(self.state.typingctx)

    def define_pipelines(self) -> list[PassManager]:
        """The one way to compile."""
        if not IS_TRIED:
            return [DefaultPassBuilder.define_nopython_pipeline(self.state)]
        self.state.library = Library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return [_steps()]


@cache
def _steps() -> PassManager:
    steps = PassManager("cvrarray")
    for step in (WithoutTypes, NopythonTypeInference, StripPhis, KernelLowering, NoPythonBackend):
        steps.add_pass(step, step.name())
    steps.finalize()
    return steps
