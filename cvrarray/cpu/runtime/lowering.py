"""From Numba's typed code of a kernel to LLVM's: the same code, in fewer lines.

Numba keeps a variable that is used in several blocks in memory, whole arrays and tuples of arrays included, and copies
an array wherever an element of it is read; LLVM then spends most of its time on taking that apart. Kernels count no
references, so a variable that is set once can simply be its value, and an element is reached from the array's pointer.

It derives from classes that Numba may change: :mod:`.pipeline` says with which versions of Numba it is used.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

from llvmlite.ir import IRBuilder
from llvmlite.ir.instructions import InsertValue
from numba import types
from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs
from numba.core.lowering import Lower

from .entry import Wrapper

POWERS = operator.pow, operator.ipow
FIELDS = {"size": "nitems", "itemsize": "itemsize", "shape": "shape"}  #: attributes of an array, as its model has them


class Builder(IRBuilder):
    """Finds what was put into a tuple or array where it is taken out."""

    def extract_value(self, agg: Any, idx: Any, name: str = "") -> Any:
        """``agg[idx]``"""
        indices = [idx] if isinstance(idx, int) else list(idx)
        source = agg
        while isinstance(source, InsertValue) and len(indices) == len(source.indices) == 1:
            if list(source.indices) == indices:
                return source.operands[1]
            source = source.operands[0]
        return super().extract_value(source if len(indices) == 1 else agg, idx, name)


class Lowering(Lower):
    """Numba's, but for variables that are set once, elements of arrays, and the wrapper for Python."""

    def _find_singly_assigned_variable(self) -> None:
        """Which variables are values: where references are counted, Numba's own choice."""
        self._held: set[str] = set()
        self._values: dict[str, Any] = {}
        if self.context.enable_nrt or self.generator_info:
            super()._find_singly_assigned_variable()
        else:
            self._singly_assigned_vars, self._blk_local_varmap, self._held = set(), {}, _set_once(self.blocks)

    def setup_function(self, fndesc: Any) -> None:
        """Numba's, with a builder of ours."""
        super().setup_function(fndesc)
        self.builder.__class__ = Builder

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
        """Let a variable go: where references are counted."""
        if self.context.enable_nrt:
            super().delvar(name)

    def _alloca_var(self, name: str, fetype: Any) -> None:
        if name not in self._held:
            super()._alloca_var(name, fetype)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        """The value of an expression."""
        if expr.op == "getattr" and expr.attr in FIELDS and _is_plain(self.typeof(expr.value.name)):
            return self._field(self.typeof(expr.value.name), self.loadvar(expr.value.name), FIELDS[expr.attr])
        return super().lower_expr(resty, expr)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """The value of a binary operator. Only a power has code of its own for a constant: none is looked for elsewhere."""
        context, builder, signature = self.context, self.builder, self.fndesc.calltypes[expr]
        if op in POWERS or not all(isinstance(kind, types.Number | types.Boolean) for kind in signature.args):
            return super().lower_binop(resty, expr, op)
        function = context.typing_context.resolve_value_type(op)
        if signature.args not in function._impl_keys:  # an inplace operator, which was looked up under its own name
            function.get_call_type(context.typing_context, signature.args, {})
        operands = [
            context.cast(builder, self.loadvar(operand.name), self.typeof(operand.name), kind)
            for operand, kind in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        result = context.get_function(function, signature)(builder, operands)
        return context.cast(builder, result, signature.return_type, resty)

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """``value[index]``"""
        array = self.typeof(value.name)
        place = self._place(array, self.loadvar(value.name), index)
        if place is None:
            return super().lower_getitem(resty, expr, value, index, signature)
        return self.context.cast(self.builder, self.context.unpack_value(self.builder, array.dtype, place), array.dtype, resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        """``target[index] = value``"""
        array, kind = self.typeof(target_var.name), self.typeof(value_var.name)
        place = None if isinstance(kind, types.Buffer) else self._place(array, self.loadvar(target_var.name), index_var)
        if place is None:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        value = self.context.cast(self.builder, self.loadvar(value_var.name), kind, array.dtype)
        return self.context.pack_value(self.builder, array.dtype, value, place)

    def _place(self, kind: types.Type, array: Any, index: Any) -> Any:
        """Pointer to an element; None where `kind` is no contiguous array, or the index no integer for each axis."""
        of = self.typeof(index.name)
        kinds = list(of) if isinstance(of, types.BaseTuple) else [of]
        if not _is_plain(kind) or len(kinds) != kind.ndim or not all(isinstance(k, types.Integer) for k in kinds):
            return None
        builder, indices = self.builder, self.loadvar(index.name)
        shape = self._field(kind, array, "shape")
        at = None
        for axis, number in enumerate(kinds):
            here = builder.extract_value(indices, axis) if isinstance(of, types.BaseTuple) else indices
            here = self.context.cast(builder, here, number, types.intp if number.signed else types.uintp)
            length = builder.extract_value(shape, axis)
            if number.signed:  # negative ones count from the end
                here = builder.select(builder.icmp_signed("<", here, here.type(0)), builder.add(here, length), here)
            at = here if at is None else builder.add(builder.mul(at, length), here)
        return builder.gep(self._field(kind, array, "data"), [at])

    def _field(self, kind: types.Array, array: Any, name: str) -> Any:
        return self.context.data_model_manager[kind].get(self.builder, array, name)

    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        """Write the module of :class:`~.entry.Wrapper`."""
        context, fndesc = self.context, self.fndesc
        module = context.create_module("wrapper")
        kind = context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
        function = self.function.__class__(module, kind, fndesc.llvm_func_name)
        Wrapper(context, module, function, fndesc, self.env, self.call_helper, release_gil).build()
        self.library.add_ir_module(module)


def _is_plain(kind: types.Type) -> bool:
    return isinstance(kind, types.Array) and kind.layout == "C" and kind.aligned and kind.ndim > 0


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
