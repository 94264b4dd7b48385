"""Vectors of eight doubles inside Numba kernels: eight states at a time, explicitly.

The inner loops of the solvers are a few exponentials and multiplications per state and action, over few
states. Left to itself LLVM vectorises such short loops badly, and the C library's ``exp`` not at all. A
``Vector`` holds one number of eight states; ``+ - * /`` work lane by lane, on machines with narrower
registers as several instructions. ``exp`` and ``log`` are branch-free arithmetic on the bits of a double,
accurate to within two units in the last place (a test compares them with NumPy).

Inside compiled code only: a Vector never reaches Python.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import lower_builtin, models, register_model, type_callable

#: Untyped: in Python an intrinsic's signature is not the one it has in compiled code.
intrinsic: Any = extending.intrinsic

#: States per vector.
WIDTH = 8

_DOUBLES = ir.VectorType(ir.DoubleType(), WIDTH)
_INTEGERS = ir.VectorType(ir.IntType(64), WIDTH)
#: Fusing a multiplication with an addition is allowed, no other liberty is.
_FUSE = ("contract",)


class VectorType(types.Type):
    """Numba type of a vector of eight doubles."""

    def __init__(self) -> None:
        super().__init__(name="sppo.Vector8")


VECTOR = VectorType()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _DOUBLES)


def _splat(builder: Any, scalar: Any) -> Any:
    single = builder.insert_element(
        ir.Constant(_DOUBLES, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0)
    )
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(single, ir.Constant(_DOUBLES, ir.Undefined), zeros)


def _doubles(value: float) -> Any:
    return ir.Constant(_DOUBLES, [value] * WIDTH)


def _integers(value: int) -> Any:
    return ir.Constant(_INTEGERS, [value] * WIDTH)


def _register_arithmetic(operation: Any, instruction: str) -> None:
    def typer(context: Any) -> Any:
        def typed(a: Any, b: Any) -> Any:
            operands = (a, b)
            if VECTOR in operands and all(o == VECTOR or isinstance(o, types.Float) for o in operands):
                return VECTOR
            return None

        return typed

    type_callable(operation)(typer)

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vectors = [
            value if kind == VECTOR else _splat(builder, value)
            for value, kind in zip(args, signature.args, strict=True)
        ]
        return getattr(builder, instruction)(*vectors, flags=_FUSE)

    for kinds in ((VECTOR, VECTOR), (VECTOR, types.Float), (types.Float, VECTOR)):
        lower_builtin(operation, *kinds)(lower)


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _register_arithmetic(_operation, _instruction)


def _address(context: Any, builder: Any, array_type: Any, array: Any, row: Any, column: Any) -> Any:
    """Address of array[row, column] of a C-contiguous matrix."""
    view = context.make_array(array_type)(context, builder, array)
    index = builder.add(builder.mul(row, builder.extract_value(view.shape, 1)), column)
    return builder.bitcast(builder.gep(view.data, [index]), ir.PointerType(_DOUBLES))


@intrinsic
def load(typingctx: Any, array: Any, row: Any, column: Any) -> Any:
    """``load(x, i, j)``: the eight numbers x[i, j], ..., x[i, j + 7] of a C-contiguous matrix."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        instruction = builder.load(_address(context, builder, signature.args[0], *args))
        instruction.align = 8
        return instruction

    return VECTOR(array, types.intp, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
    """``store(x, i, j, v)``: x[i, j : j + 8] = v."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        instruction = builder.store(args[3], _address(context, builder, signature.args[0], *args[:3]))
        instruction.align = 8
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, VECTOR), codegen


@intrinsic
def splat(typingctx: Any, scalar: Any) -> Any:
    """A vector of one number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return VECTOR(types.float64), codegen


@intrinsic
def total(typingctx: Any, vector: Any) -> Any:
    """Sum of the eight lanes, pairwise."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[0]
        for half in (4, 2, 1):
            mask = ir.Constant(
                ir.VectorType(ir.IntType(32), WIDTH), [(i + half) % WIDTH for i in range(WIDTH)]
            )
            value = builder.fadd(value, builder.shuffle_vector(value, value, mask))
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return types.float64(VECTOR), codegen


def _select(comparison: str) -> Callable[..., Any]:
    def select(builder: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
        return builder.select(builder.fcmp_ordered(comparison, a, b), yes, no)

    return select


@intrinsic
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    """Lane by lane maximum."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _select(">")(builder, *args, *args)

    return VECTOR(VECTOR, VECTOR), codegen


@intrinsic
def where_less(typingctx: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """``yes`` in the lanes where a < b, ``no`` in the others."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _select("<")(builder, *args)

    return VECTOR(VECTOR, VECTOR, VECTOR, VECTOR), codegen


@intrinsic
def differs(typingctx: Any, a: Any, b: Any) -> Any:
    """Whether any lane of a differs from b's."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        unequal = builder.fcmp_unordered("!=", *args)
        return builder.icmp_unsigned(
            "!=", builder.bitcast(unequal, ir.IntType(WIDTH)), ir.Constant(ir.IntType(WIDTH), 0)
        )

    return types.boolean(VECTOR, VECTOR), codegen


#: Adding and subtracting 1.5 * 2**52 rounds to an integer and leaves it in the low bits.
_ROUND = 6755399441055744.0
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


def _polynomial(builder: Any, x: Any, coefficients: list[float]) -> Any:
    """Σ c_k x^k by Estrin's scheme: pairs first, which shortens the chain of dependent operations."""
    terms = [_doubles(c) for c in coefficients]
    while len(terms) > 1:
        paired = [
            builder.fadd(low, builder.fmul(x, high, flags=_FUSE), flags=_FUSE)
            for low, high in zip(terms[::2], terms[1::2], strict=False)
        ]
        terms = paired + terms[len(paired) * 2 :]
        x = builder.fmul(x, x, flags=_FUSE)
    return terms[0]


#: e^r on |r| ≤ ln(2)/2: coefficients of the interpolation at 12 Chebyshev points, computed in rational
#: arithmetic; the remainder is below 5e-18.
_EXP_COEFFICIENTS = [
    1.0,
    1.0,
    0.5000000000000019,
    0.1666666666666668,
    0.04166666666648666,
    0.00833333333331949,
    0.0013888888952696516,
    0.00019841269890340666,
    2.4801485074105115e-05,
    2.7557240604663896e-06,
    2.763279054211718e-07,
    2.511015364692893e-08,
]


@intrinsic
def exp(typingctx: Any, x: Any) -> Any:
    """e^x lane by lane for x ≤ 700; below -690 it stays at e^-690 (5e-300), also for -inf.

    e^x = 2^k e^r with k = round(x / ln 2) and |r| ≤ ln(2)/2, e^r by a polynomial.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowest = _doubles(_LOWEST_EXPONENT)
        x = _select(">")(builder, args[0], lowest, args[0], lowest)
        shifted = builder.fadd(
            builder.fmul(x, _doubles(1.0 / math.log(2.0)), flags=_FUSE), _doubles(_ROUND), flags=_FUSE
        )
        k = builder.fsub(shifted, _doubles(_ROUND))
        r = builder.fsub(x, builder.fmul(k, _doubles(_LN2_HIGH), flags=_FUSE), flags=_FUSE)
        r = builder.fsub(r, builder.fmul(k, _doubles(_LN2_LOW), flags=_FUSE), flags=_FUSE)
        polynomial = _polynomial(builder, r, _EXP_COEFFICIENTS)
        exponent = builder.shl(builder.bitcast(shifted, _INTEGERS), _integers(52))
        scale = builder.bitcast(builder.add(exponent, _integers(_ONE_BITS)), _DOUBLES)
        return builder.fmul(polynomial, scale)

    return VECTOR(VECTOR), codegen


@intrinsic
def log(typingctx: Any, x: Any) -> Any:
    """ln x lane by lane, for normal positive x.

    x = 2^k m with m in [√½, √2), and ln m = 2 artanh(f), f = (m - 1)/(m + 1), by its series in f²
    (remainder below 3e-17).
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.add(builder.bitcast(args[0], _INTEGERS), _integers(_ONE_BITS - _SQRT_HALF_BITS))
        # 64-bit integers have no vector conversion to doubles on many machines; the 2**52 trick has
        exponent = builder.or_(builder.lshr(bits, _integers(52)), _integers(_INTEGER_BITS))
        exponent = builder.fsub(builder.bitcast(exponent, _DOUBLES), _doubles(2.0**52 + 1023.0))
        mantissa = builder.add(builder.and_(bits, _integers(_MANTISSA_MASK)), _integers(_SQRT_HALF_BITS))
        m = builder.bitcast(mantissa, _DOUBLES)
        one = _doubles(1.0)
        f = builder.fdiv(builder.fsub(m, one), builder.fadd(m, one))
        square = builder.fmul(f, f)
        series = builder.fmul(square, _polynomial(builder, square, [1.0 / k for k in range(3, 22, 2)]))
        doubled = builder.fadd(f, f)
        tail = builder.fadd(
            builder.fmul(doubled, series),
            builder.fmul(exponent, _doubles(_LN2_LOW), flags=_FUSE),
            flags=_FUSE,
        )
        return builder.fadd(builder.fmul(exponent, _doubles(_LN2_HIGH)), builder.fadd(doubled, tail))

    return VECTOR(VECTOR), codegen
