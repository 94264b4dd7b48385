"""SciPy's BLAS: its single-precision matrix product on parts of flat arrays, for compiled code; its threads.

Numba's own ``np.dot`` reaches the same routine, but needs a view for every operand and several
seconds to compile; this takes offsets and compiles at once. The routine is known to compiled code by
name, so that code cached on disk finds it again in the next process.

A minibatch of 64 through layers of 64 is microseconds of arithmetic; a second thread costs more in
waiting than it saves, and its spinning slows down whatever else runs on the machine. Where products
are large, the engine uses as many threads as PyTorch would (``OMP_NUM_THREADS`` and
``torch.set_num_threads`` are obeyed).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import llvmlite.binding as llvm
import scipy.linalg.cython_blas
import torch as th
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import get_cython_function_address, intrinsic

_SYMBOL = "sppo_sgemm"
llvm.add_symbol(_SYMBOL, get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))

#: multiply-adds of the largest product of a minibatch from which several threads are used
LARGE_PRODUCT = 8_000_000

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


@functools.cache
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's getter and setter of its number of threads; ``None`` if SciPy has another BLAS."""
    try:
        library = ctypes.CDLL(scipy.linalg.cython_blas.__file__)
    except OSError:
        return None
    for prefix in ("scipy_openblas", "openblas"):
        if hasattr(library, f"{prefix}_get_num_threads"):
            return library[f"{prefix}_get_num_threads"], library[f"{prefix}_set_num_threads"]
    return None


@contextmanager
def blas_threads(multiply_adds: int) -> Iterator[None]:
    """Set the number of BLAS threads that suits products of this size; it is as before afterwards."""
    controls = _controls()
    if controls is None:
        yield
        return
    read, write = controls
    before = read()
    write(th.get_num_threads() if multiply_adds >= LARGE_PRODUCT else 1)
    try:
        yield
    finally:
        write(before)
