"""The steps from a kernel to machine code: Numba's, but for what kernels do not need, or what was done before.

After types are known kernels need four steps, not a dozen: they have no array expressions and no references to count.
What a kernel calls is looked up once, not again for each kernel. LLVM's optimiser runs on a whole kernel, and not on
its parts before.

It derives from classes that Numba may change, so no version of Numba is taken that it was not tried with.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
from numba import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, PassManager
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import BaseNativeLowering, NoPythonBackend, NopythonTypeInference, PreLowerStripPhis
from numba.core.typing import Context

from .lowering import Lowering

TRIED = (0, 62), (0, 68)  #: the first and the last version of Numba that this was tried with
if not TRIED[0] <= tuple(numba.version_info[:2]) <= TRIED[1]:
    tried = " to ".join(".".join(map(str, version)) for version in TRIED)
    raise ImportError(f"cvrarray's kernels need numba {tried}; got {numba.__version__}. Install one of these")

KNOWN: dict[Any, Any] = {}  #: signatures of calls, and types of attributes


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
        # Numba runs two sets of passes, of which the first one spoils loops: A @ X takes 1.15 to 1.7 times as long
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


class Compiler(CompilerBase):
    """For ``njit(pipeline_class=...)``, of functions that count no references."""

    library_class = Library

    def define_pipelines(self) -> list[PassManager]:
        """The one way to compile."""
        self.state.typingctx = _typing(self.state.typingctx)
        self.state.library = self.library_class(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        steps = DefaultPassBuilder.define_untyped_pipeline(self.state, "cvrarray")
        for step in (NopythonTypeInference, PreLowerStripPhis, KernelLowering, NoPythonBackend):
            steps.add_pass(step, step.name())
        steps.finalize()
        return [steps]
