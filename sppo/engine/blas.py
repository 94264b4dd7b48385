"""SciPy's single-precision matrix product, callable from compiled code on parts of flat arrays.

Numba's own ``np.dot`` reaches the same routine, but needs a view for every operand and several
seconds to compile; this takes offsets and compiles at once. The routine is known to compiled code by
name, so that code cached on disk finds it again in the next process.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
import scipy.linalg.cython_blas  # noqa: F401  (the module whose routine is looked up below)
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import get_cython_function_address, intrinsic

_SYMBOL = "sppo_sgemm"
llvm.add_symbol(_SYMBOL, get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))

_vector = types.Array(types.float32, 1, "C")


def _matmul(
    typingctx: types.Type,
    a: types.Type,
    a_start: types.Type,
    a_transposed: types.Type,
    b: types.Type,
    b_start: types.Type,
    b_transposed: types.Type,
    c: types.Type,
    c_start: types.Type,
    m: types.Type,
    n: types.Type,
    k: types.Type,
    beta: types.Type,
) -> tuple[Signature, Callable[..., ir.Value]]:
    """``C = A B + beta C`` for row-major matrices that start at given places of flat float32 arrays.

    ``A`` is m x k (stored as k x m if ``a_transposed``), ``B`` is k x n (n x k), ``C`` is m x n.
    """
    place = types.int64
    signature = types.void(
        *(_vector, place, types.boolean) * 2, _vector, place, place, place, place, types.float32
    )

    def codegen(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: list[ir.Value]
    ) -> ir.Value:
        a, a_start, a_t, b, b_start, b_t, c, c_start, m, n, k, beta = values
        integer, real, byte = ir.IntType(32), ir.FloatType(), ir.IntType(8)

        def pointer(array: ir.Value, start: ir.Value) -> ir.Value:
            data = context.make_array(_vector)(context, builder, array).data
            return builder.gep(data, [start])

        def reference(value: ir.Value) -> ir.Value:
            return cgutils.alloca_once_value(builder, value)

        def number(value: ir.Value) -> ir.Value:
            return builder.trunc(value, integer)

        def flag(transposed: ir.Value) -> ir.Value:
            return reference(builder.select(transposed, byte(ord("T")), byte(ord("N"))))

        # BLAS counts along columns, so it is asked for the transposed product: C' = B' A'.
        rows, columns, inner = number(m), number(n), number(k)
        lead_a = builder.select(a_t, rows, inner)
        lead_b = builder.select(b_t, inner, columns)
        one = reference(real(1.0))
        arguments = [
            *(flag(b_t), flag(a_t), reference(columns), reference(rows), reference(inner), one),
            *(pointer(b, b_start), reference(lead_b), pointer(a, a_start), reference(lead_a)),
            *(reference(beta), pointer(c, c_start), reference(columns)),
        ]
        function_type = ir.FunctionType(ir.VoidType(), [value.type for value in arguments])
        routine = cgutils.get_or_insert_function(builder.module, function_type, _SYMBOL)
        builder.call(routine, arguments)
        return context.get_dummy_value()

    return signature, codegen


matmul: Callable[..., object] = intrinsic(_matmul)
