"""From Numba's typed code of a kernel to LLVM's: the same code, in fewer lines.

Numba keeps a variable that is used in several blocks in memory, whole arrays and tuples of arrays included, and LLVM
then spends much of its time on taking that apart. Kernels count no references, so a variable that is set once can
simply be its value.

It derives from classes that Numba may change: :mod:`.pipeline` says with which versions of Numba it is used.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs
from numba.core.lowering import Lower

from .entry import Wrapper


class Lowering(Lower):
    """Numba's, but for variables that are set once, and the wrapper for Python. No references are counted."""

    def _find_singly_assigned_variable(self) -> None:
        """Which variables are values."""
        self._values: dict[str, Any] = {}
        self._singly_assigned_vars, self._blk_local_varmap, self._held = set(), {}, _set_once(self.blocks)

    def loadvar(self, name: str) -> Any:
        """The value of a variable."""
        return self._values[name] if name in self._values else super().loadvar(name)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        """Set a variable."""
        if name in self._held:
            self._values[name] = value
        else:
            super().storevar(value, name, argidx)

    def delvar(self, name: str) -> None:
        """Nothing ends with a variable."""

    def _alloca_var(self, name: str, fetype: Any) -> None:
        if name not in self._held:
            super()._alloca_var(name, fetype)

    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        """Write the module of :class:`~.entry.Wrapper`."""
        context, fndesc = self.context, self.fndesc
        module = context.create_module("wrapper")
        kind = context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
        function = self.function.__class__(module, kind, fndesc.llvm_func_name)
        Wrapper(context, module, function, fndesc, self.env, self.call_helper, release_gil).build()
        self.library.add_ir_module(module)


def _set_once(blocks: dict[int, Any]) -> set[str]:
    """Variables that one statement sets, before whatever uses them, wherever that is and in whatever order it is
    written.
    """
    sets = Counter(inst.target.name for block in blocks.values() for inst in block.find_insts(ir.Assign))
    flow, dominators = compute_use_defs(blocks), compute_cfg_from_blocks(blocks).dominators()
    set_in = {name: label for label, names in flow.defmap.items() for name in names if sets[name] == 1}
    for label, names in flow.usemap.items():  # before the block itself sets them
        for name in names:
            if name in set_in and (label <= set_in[name] or set_in[name] not in dominators[label]):
                del set_in[name]
    return set(set_in)
