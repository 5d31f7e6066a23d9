"""Functions that are compiled only as parts of kernels: Numba types and lowers them, and nothing more.

Numba optimises every function by itself, makes machine code of it, and a wrapper that Python can call, before it links
the function into those that call it, where all is optimised again. For a function that kernels inline most of that is
wasted: half of the time that a kernel takes to compile.
"""

from __future__ import annotations

from collections.abc import Callable

from numba.core.compiler import CompileResult, PassManager

from . import pipeline


class Library(pipeline.Library):
    """A function as Numba lowered it, and those that it calls, to be linked into a kernel."""

    def finalize(self) -> None:
        """Nothing is compiled."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class Compiler(pipeline.Compiler):
    """For ``njit(pipeline_class=...)``: the pipeline of kernels, which ends before machine code is made."""

    library_class = Library

    def define_pipelines(self) -> list[PassManager]:
        self.state.flags.no_compile = True
        return super().define_pipelines()

    def compile_extra(self, function: Callable) -> CompileResult:
        """Numba's result, with an entry point, by which callers find the function, though there is no machine code."""
        result = super().compile_extra(function)
        # Numba asks for a built-in function, and for one that no other result has. Nobody calls it.
        result = result._replace(entry_point=[].pop)
        result.target_context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return result
