"""How Python enters a kernel: a wrapper that takes the arrays of its arguments as they are.

Numba's own wrapper asks NumPy for each array, checks it and each tuple again, and has a way out for every one that is
wrong. With the two dozen arrays of a format's tables that is a quarter of what a kernel takes to compile, and more than
half of what a call of it costs. Here an array's fields are read from where NumPy has them; the types were looked at
before, by Numba's dispatcher or by the caller of a compiled version (see :func:`.compiler.compiled`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callwrapper import PyCallWrapper

#: Where an object's fields begin: those of an array are its data, ndim, dimensions and strides, a word each
#: (``PyArrayObject_fields``, which extensions read by macros of NumPy's headers); a tuple's are its items.
ARRAY, TUPLE = object.__basicsize__, tuple.__basicsize__
DIMENSIONS, STRIDES = ARRAY + 16, ARRAY + 24


class Wrapper(PyCallWrapper):
    """A function that Python calls."""

    def build_wrapper(self, api: Any, builder: ir.IRBuilder, closure: Any, args: Any, kws: Any) -> None:
        """Write its code."""
        kinds = self.fndesc.argtypes
        objects = [api.alloca_obj() for _ in kinds]
        unpacked = api.unpack_tuple(args, self.fndesc.qualname, len(kinds), len(kinds), *objects)
        with cgutils.if_unlikely(builder, cgutils.is_null(builder, unpacked)):
            builder.ret(api.get_null_object())
        environment = self.get_env(api, builder)
        reader = Reader(api)
        given = [part for kind, obj in zip(kinds, objects, strict=True) for part in reader.parts(kind, builder.load(obj))]
        with cgutils.if_unlikely(builder, reader.wrong):
            builder.ret(api.get_null_object())

        thread = api.save_thread() if self.release_gil else None
        status, value = _call(self.context, builder, self.func, self.fndesc.restype, given)
        if self.release_gil:
            api.restore_thread(thread)
        with builder.if_then(status.is_ok, likely=True):
            with builder.if_then(status.is_none):
                api.return_none()
            builder.ret(api.from_native_return(self._simplified_return_type(), value, environment))
        self.context.call_conv.raise_error(builder, api, status)
        builder.ret(api.get_null_object())


def _call(context: Any, builder: ir.IRBuilder, function: ir.Function, result: types.Type, given: list[ir.Value]) -> Any:
    """Status and value of a call whose arguments are the numbers and pointers that they consist of."""
    convention = context.call_conv
    place, error = (cgutils.alloca_once(builder, kind.type.pointee, zfill=True) for kind in function.args[:2])
    code = builder.call(function, [place, error, *given], attrs=("noinline",))
    status = convention._get_return_status(builder, code, builder.load(error))
    return status, context.get_returned_value(builder, result, builder.load(place))


class Reader:
    """Reads arguments: arrays and tuples of them without questions, others as Numba does."""

    def __init__(self, api: Any) -> None:
        self.api, self.context, self.builder = api, api.context, api.builder
        self.wrong = cgutils.false_bit  #: whether a number could not be read

    def parts(self, kind: types.Type, obj: ir.Value) -> Iterator[ir.Value]:
        """The numbers and pointers that a function takes for `obj` of Numba's type `kind`."""
        if isinstance(kind, types.Array):
            yield from self._array(kind, obj)
        elif isinstance(kind, types.BaseTuple):
            for i, item in enumerate(kind):
                yield from self.parts(item, self._pointer(obj, TUPLE + 8 * i))
        else:
            native = self.api.to_native_value(kind, obj)
            self.wrong = self.builder.or_(self.wrong, native.is_error)
            part = self.context.data_model_manager[kind].as_argument(self.builder, native.value)
            yield from part if isinstance(part, tuple) else (part,)  # a complex number has two

    def _array(self, kind: types.Array, obj: ir.Value) -> Iterator[ir.Value]:
        """In the order of Numba's model of an array."""
        builder, word = self.builder, self.api.py_ssize_t
        n_items = word(1)
        shape, strides = (self._words(obj, at, kind.ndim) for at in (DIMENSIONS, STRIDES))
        for length in shape:
            n_items = builder.mul(n_items, length)
        data = builder.bitcast(self._pointer(obj, ARRAY), self.context.get_data_type(kind.dtype).as_pointer())
        item_size = word(self.context.get_abi_sizeof(self.context.get_data_type(kind.dtype)))
        no_owner = ir.Constant(self.api.voidptr, None)
        yield from (no_owner, obj, n_items, item_size, data, *shape, *strides)

    def _words(self, obj: ir.Value, at: int, n: int) -> list[ir.Value]:
        """The n words that a pointer in `obj` points to."""
        word = self.api.py_ssize_t
        first = self.builder.bitcast(self._pointer(obj, at), word.as_pointer())
        return [self.builder.load(self.builder.gep(first, [word(i)])) for i in range(n)]

    def _pointer(self, obj: ir.Value, at: int) -> ir.Value:
        """The pointer that stands `at` bytes after the beginning of `obj`."""
        place = self.builder.gep(obj, [self.api.py_ssize_t(at)])
        return self.builder.load(self.builder.bitcast(place, self.api.pyobj.as_pointer()))
