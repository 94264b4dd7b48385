"""Vectors of eight doubles inside Numba kernels: one number of eight states at a time.

The solvers' inner loops are a few exponentials and multiplications per state and action, over few states.
LLVM vectorises such short loops badly, and the C library's ``exp`` not at all: written as plain loops the
kernels are three to five times slower. ``+ - * /`` work lane by lane, as several instructions on machines
with narrower registers. ``exp`` and ``log`` are accurate to two units in the last place (a test compares
them with NumPy). Inside compiled code only: a Vector never reaches Python.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import product
from typing import Any

from llvmlite import ir
from llvmlite.ir import IRBuilder, Value
from numba import extending, types
from numba.core.base import BaseContext
from numba.core.types import Type
from numba.core.typing import Signature
from numba.extending import lower_builtin, models, register_model, type_callable

from sppo.compiled import njit

#: Untyped: in Python an intrinsic's signature is not the one it has in compiled code.
intrinsic: Any = extending.intrinsic

#: What a Vector is while kernels are written; llvmlite is untyped.
Vector = Value
#: What emits instructions, and what Numba's extension points take: a type with its emitter.
Emitter = Callable[..., Value]
Lowering = tuple[Signature, Emitter]
#: States per vector.
WIDTH = 8

_DOUBLES = ir.VectorType(ir.DoubleType(), WIDTH)
_INTEGERS = ir.VectorType(ir.IntType(64), WIDTH)
#: Fusing a multiplication with an addition is allowed, no other liberty is.
_FUSE = ("contract",)


class VectorType(Type):
    """Numba type of a vector of eight doubles."""

    def __init__(self) -> None:
        super().__init__(name="sppo.Vector8")


VECTOR = VectorType()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: object, fe_type: Type) -> None:
        super().__init__(dmm, fe_type, _DOUBLES)


def _shuffled(builder: IRBuilder, vector: Value, lanes: list[int]) -> Value:
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), lanes))


def _spread(builder: IRBuilder, scalar: Value) -> Value:
    single = builder.insert_element(ir.Constant(_DOUBLES, ir.Undefined), scalar, ir.IntType(32)(0))
    return _shuffled(builder, single, [0] * WIDTH)


def _integers(value: int) -> Value:
    return ir.Constant(_INTEGERS, [value] * WIDTH)


def _operation(result: Type, arguments: int, known_as: Emitter | None = None) -> Callable[[Emitter], Emitter]:
    """The decorated function emits instructions, given LLVM's builder: those of itself, or of ``known_as``.

    It becomes known to Numba for Vectors, or for Vectors and floats, which are spread.
    """

    def typed(*kinds: Type) -> Type | None:
        known = all(kind == VECTOR or isinstance(kind, types.Float) for kind in kinds)
        return result if known and VECTOR in kinds else None

    # Numba wants to see the number of arguments
    arity: dict[int, Callable[..., Type | None]] = {
        1: lambda a: typed(a),
        2: lambda a, b: typed(a, b),
        4: lambda a, b, c, d: typed(a, b, c, d),
    }
    typer: Any = lambda context: arity[arguments]  # noqa: E731

    def register(emit: Emitter) -> Emitter:
        def lowered(context: BaseContext, builder: IRBuilder, signature: Signature, values: Value) -> Value:
            kinds = zip(values, signature.args, strict=True)
            return emit(builder, *(v if kind == VECTOR else _spread(builder, v) for v, kind in kinds))

        type_callable(known_as or emit)(typer)
        for kinds in product((VECTOR, types.Float), repeat=arguments):
            # Floats alone are Numba's own: imported after something was compiled, this would replace that.
            if VECTOR in kinds:
                lower_builtin(known_as or emit, *kinds)(lowered)
        return emit

    return register


_OPERATORS = {"fadd": operator.add, "fsub": operator.sub, "fmul": operator.mul, "fdiv": operator.truediv}
for _name, _operator in _OPERATORS.items():
    _operation(VECTOR, 2, _operator)(lambda b, x, y, name=_name: getattr(b, name)(x, y, flags=_FUSE))


@_operation(VECTOR, 2)
def maximum(builder: IRBuilder, a: Value, b: Value) -> Value:
    """Lane by lane maximum."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@_operation(VECTOR, 4)
def if_less(builder: IRBuilder, a: Value, b: Value, yes: Value, no: Value) -> Value:
    """``yes`` in the lanes where a < b, ``no`` in the others."""
    return builder.select(builder.fcmp_ordered("<", a, b), yes, no)


@_operation(types.boolean, 2)
def differs(builder: IRBuilder, a: Value, b: Value) -> Value:
    """Whether any lane of a differs from b's."""
    lanes = builder.bitcast(builder.fcmp_unordered("!=", a, b), ir.IntType(WIDTH))
    return builder.icmp_unsigned("!=", lanes, ir.IntType(WIDTH)(0))


@_operation(types.float64, 1)
def total(builder: IRBuilder, vector: Value) -> Value:
    """Sum of the eight lanes, pairwise."""
    for half in (4, 2, 1):
        vector = builder.fadd(vector, _shuffled(builder, vector, [(i + half) % WIDTH for i in range(WIDTH)]))
    return builder.extract_element(vector, ir.IntType(32)(0))


@intrinsic
def splat(typingctx: BaseContext, scalar: Type) -> Lowering:
    """A vector of one number."""
    return VECTOR(types.float64), lambda context, builder, signature, args: _spread(builder, args[0])


def _address(
    context: BaseContext, builder: IRBuilder, kind: Type, array: Value, row: Value, column: Value
) -> Value:
    """Address of array[row, column] of a C-contiguous matrix."""
    view = context.make_array(kind)(context, builder, array)
    index = builder.add(builder.mul(row, builder.extract_value(view.shape, 1)), column)
    return builder.bitcast(builder.gep(view.data, [index]), ir.PointerType(_DOUBLES))


@intrinsic
def load(typingctx: BaseContext, array: Type, row: Type, column: Type) -> Lowering:
    """``load(x, i, j)``: the eight numbers x[i, j], ..., x[i, j + 7] of a C-contiguous matrix."""

    def emit(context: BaseContext, builder: IRBuilder, signature: Signature, args: Value) -> Value:
        return builder.load(_address(context, builder, signature.args[0], *args), align=8)

    return VECTOR(array, types.intp, types.intp), emit


@intrinsic
def store(context: BaseContext, array: Type, row: Type, column: Type, vector: Type) -> Lowering:
    """``store(x, i, j, v)``: x[i, j : j + 8] = v."""

    def emit(context: BaseContext, builder: IRBuilder, signature: Signature, args: Value) -> Value:
        builder.store(args[3], _address(context, builder, signature.args[0], *args[:3]), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, VECTOR), emit


#: Adding and subtracting 1.5 * 2**52 rounds to an integer and leaves it in the low bits.
_ROUND = 6755399441055744.0
_INVERSE_LN2 = 1.0 / math.log(2.0)
#: ln 2 in two parts; the high part has trailing zeros, so that k * _LN2_HIGH is exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
#: exp goes no lower: products of smaller numbers would be subnormal, which is slow and worth nothing.
_LOWEST_EXPONENT = -690.0
_ONE_BITS = 0x3FF0000000000000
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_MANTISSA_MASK = 0x000FFFFFFFFFFFFF
#: 2**52 as bits: OR-ing a small integer into them gives the double 2**52 + integer.
_INTEGER_BITS = 0x4330000000000000
#: e^r on |r| ≤ ln(2)/2: the interpolation at 12 Chebyshev points, computed in rational arithmetic; the
#: remainder is below 5e-18. The first two coefficients are 1.
_E2, _E3, _E4, _E5 = 0.5000000000000019, 0.1666666666666668, 0.04166666666648666, 0.00833333333331949
_E6, _E7, _E8 = 0.0013888888952696516, 0.00019841269890340666, 2.4801485074105115e-05
_E9, _E10, _E11 = 2.7557240604663896e-06, 2.763279054211718e-07, 2.511015364692893e-08


_pasted = njit(cache=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_operation(VECTOR, 1)
def _power_of_two(builder: IRBuilder, shifted: Value) -> Value:
    """2^k of k + _ROUND."""
    exponent = builder.shl(builder.bitcast(shifted, _INTEGERS), _integers(52))
    return builder.bitcast(builder.add(exponent, _integers(_ONE_BITS)), _DOUBLES)


def _centred_bits(builder: IRBuilder, x: Value) -> Value:
    return builder.add(builder.bitcast(x, _INTEGERS), _integers(_ONE_BITS - _SQRT_HALF_BITS))


@_operation(VECTOR, 1)
def _exponent(builder: IRBuilder, x: Value) -> Value:
    """k of x = 2^k m with m in [√½, √2)."""
    # 64-bit integers have no vector conversion to doubles on many machines; the 2**52 trick has
    bits = builder.or_(builder.lshr(_centred_bits(builder, x), _integers(52)), _integers(_INTEGER_BITS))
    return builder.fsub(builder.bitcast(bits, _DOUBLES), ir.Constant(_DOUBLES, [2.0**52 + 1023.0] * WIDTH))


@_operation(VECTOR, 1)
def _mantissa(builder: IRBuilder, x: Value) -> Value:
    """m of x = 2^k m with m in [√½, √2)."""
    bits = builder.and_(_centred_bits(builder, x), _integers(_MANTISSA_MASK))
    return builder.bitcast(builder.add(bits, _integers(_SQRT_HALF_BITS)), _DOUBLES)


@_pasted
def exp(x: Value) -> Value:
    """e^x lane by lane for x ≤ 700; below -690 it stays at e^-690 (5e-300), also for -inf.

    e^x = 2^k e^r with k = round(x / ln 2) and |r| ≤ ln(2)/2, e^r by a polynomial, pairs of terms first.
    """
    x = maximum(x, _LOWEST_EXPONENT)
    shifted = x * _INVERSE_LN2 + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = ((1.0 + r) + r2 * (_E2 + _E3 * r)) + r4 * ((_E4 + _E5 * r) + r2 * (_E6 + _E7 * r))
    high = (_E8 + _E9 * r) + r2 * (_E10 + _E11 * r)
    return (low + r4 * r4 * high) * _power_of_two(shifted)


@_pasted
def log(x: Value) -> Value:
    """ln x lane by lane, for normal positive x.

    x = 2^k m with m in [√½, √2), and ln m = 2 artanh(f), f = (m - 1)/(m + 1), by its series in f²
    (remainder below 3e-17).
    """
    k, m = _exponent(x), _mantissa(x)
    f = (m - 1.0) / (m + 1.0)
    s = f * f
    s2 = s * s
    s4 = s2 * s2
    low = ((1 / 3 + 1 / 5 * s) + s2 * (1 / 7 + 1 / 9 * s)) + s4 * (
        (1 / 11 + 1 / 13 * s) + s2 * (1 / 15 + 1 / 17 * s)
    )
    series = s * (low + s4 * s4 * (1 / 19 + 1 / 21 * s))
    double = f + f
    return k * _LN2_HIGH + (double + (double * series + k * _LN2_LOW))
