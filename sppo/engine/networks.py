"""The networks in compiled code: a table of layers, forwards and backwards.

The matrix products go to BLAS; everything else is plain loops that LLVM turns into vector instructions.

Arrays are float32 unless said otherwise. The table has one row per layer with the columns below, in an order
in which a layer comes after the one that it reads:

- ``FAN_IN``, ``FAN_OUT``: its widths
- ``WEIGHT``, ``BIAS``: where its weights (``FAN_OUT`` x ``FAN_IN``) and biases start in the parameters
- ``ACTIVATION``: ``IDENTITY``, ``TANH`` or ``RELU``
- ``COLUMN``: its place in the workspaces: the width of the features and of the layers before it
- ``SOURCE``: the place of what it reads, 0 for the features
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.compiled import njit
from sppo.engine.blas import matmul

Array = np.ndarray

FAN_IN, FAN_OUT, WEIGHT, BIAS, ACTIVATION, COLUMN, SOURCE = range(7)
IDENTITY, TANH, RELU = range(3)

_EXACT: dict[str, object] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
# No assumption that numbers are finite: a NaN must arrive at the gradient's norm to be noticed there.
_FAST: dict[str, object] = {**_EXACT, "fastmath": {"contract", "reassoc", "arcp", "nsz", "afn"}}
# Called from compiled code only: what Python would need to call them takes time to compile.
inline, exact_inline = (
    njit(**{**options, "no_cpython_wrapper": True}, cache=False) for options in (_FAST, _EXACT)
)
entry = njit(**_FAST, cache=True)
#: strictly in the written order of operations, so that results are Stable-Baselines3's
exact = njit(**_EXACT, cache=True)

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)

# tanh(x) = x P(x^2) / Q(x^2) on |x| <= 9, fitted for the smallest maximal relative error (1.1e-7);
# beyond 9 the nearest float32 is 1.
_TANH_END = np.float32(9.0)
_P0, _P1 = np.float32(0.9999999206164549), np.float32(0.13369619807614916)
_P2, _P3 = np.float32(0.003480031858001048), np.float32(2.0269848679723596e-05)
_P4 = np.float32(1.2731884187464272e-08)
_Q1, _Q2 = np.float32(0.467029680186852), np.float32(0.02582309111524736)
_Q3, _Q4 = np.float32(0.0003256600784241504), np.float32(7.55360700206687e-07)


class Workspace(NamedTuple):
    """Scratch memory for minibatches of at most as many samples as there are ``ones``.

    :param hidden: the features, and the outputs of all layers
    :param delta: the gradients of ``hidden``
    :param d_entropy: as many numbers as the policy has outputs, and so ``towards`` and ``towards_std``
    """

    hidden: Array
    delta: Array
    ones: Array
    d_entropy: Array
    towards: Array
    towards_std: Array


class Layout(NamedTuple):
    """A policy's networks.

    :param layers: the table of layers
    :param heads: last layer of the policy, last layer of the value function, start and end of ``log_std``
    :param kind: the action distribution
    :param sizes: number of choices of each categorical action
    """

    layers: Array
    heads: Array
    kind: int
    sizes: Array

    @property
    def n_features(self) -> int:
        """Width of the flattened observations."""
        return int(self.layers[0, FAN_IN])

    @property
    def n_outputs(self) -> int:
        """Width of the policy's last layer."""
        return int(self.layers[self.heads[0], FAN_OUT])

    def multiply_adds(self, rows: int) -> int:
        """How large the largest matrix product for ``rows`` samples is."""
        return rows * int((self.layers[:, FAN_IN] * self.layers[:, FAN_OUT]).max())

    def workspace(self, rows: int) -> Workspace:
        """Scratch memory for minibatches of up to ``rows`` samples."""
        size = rows * (self.n_features + int(self.layers[:, FAN_OUT].sum()))
        hidden, delta = np.zeros((2, size), np.float32)
        return Workspace(hidden, delta, np.ones(rows, np.float32), *np.zeros((3, self.n_outputs), np.float32))


@inline
def clip(x: float, low: float, high: float) -> float:
    x = high if x > high else x
    return low if x < low else x


@inline
def _tanh(x: np.float32) -> np.float32:
    x = _TANH_END if x > _TANH_END else x
    x = -_TANH_END if x < -_TANH_END else x
    s = x * x
    p = _P0 + s * (_P1 + s * (_P2 + s * (_P3 + s * _P4)))
    q = _ONE + s * (_Q1 + s * (_Q2 + s * (_Q3 + s * _Q4)))
    return x * (p / q)


@inline
def forward(layers: Array, parameters: Array, workspace: Workspace, rows: int, first: int, end: int) -> None:
    """Compute the outputs of layers ``first`` to ``end`` for the first ``rows`` rows of features."""
    hidden, ones = workspace.hidden, workspace.ones
    capacity = ones.shape[0]
    for k in range(first, end):
        width, fan_in, bias, weight = (
            layers[k, FAN_OUT],
            layers[k, FAN_IN],
            layers[k, BIAS],
            layers[k, WEIGHT],
        )
        start, read = layers[k, COLUMN] * capacity, layers[k, SOURCE] * capacity
        matmul(ones, 0, False, parameters, bias, False, hidden, start, rows, width, 1, _ZERO)
        matmul(hidden, read, False, parameters, weight, True, hidden, start, rows, width, fan_in, _ONE)
        out = hidden[start : start + rows * width]
        if layers[k, ACTIVATION] == TANH:
            for j in range(out.shape[0]):
                out[j] = _tanh(out[j])
        elif layers[k, ACTIVATION] == RELU:
            for j in range(out.shape[0]):
                out[j] = _ZERO if out[j] < _ZERO else out[j]


@inline
def backward(
    layers: Array, parameters: Array, gradient: Array, workspace: Workspace, rows: int, first: int, end: int
) -> None:
    """Turn the outputs' gradients in ``delta`` into the gradients of the parameters of these layers."""
    hidden, delta, ones = workspace.hidden, workspace.delta, workspace.ones
    capacity = ones.shape[0]
    for k in range(end - 1, first - 1, -1):
        width, fan_in, bias, weight = (
            layers[k, FAN_OUT],
            layers[k, FAN_IN],
            layers[k, BIAS],
            layers[k, WEIGHT],
        )
        start, read = layers[k, COLUMN] * capacity, layers[k, SOURCE] * capacity
        out, d_out = hidden[start : start + rows * width], delta[start : start + rows * width]
        if layers[k, ACTIVATION] == TANH:
            for j in range(out.shape[0]):
                d_out[j] *= _ONE - out[j] * out[j]
        elif layers[k, ACTIVATION] == RELU:
            for j in range(out.shape[0]):
                d_out[j] = d_out[j] if out[j] > _ZERO else _ZERO
        matmul(ones, 0, False, delta, start, False, gradient, bias, 1, width, rows, _ZERO)
        matmul(delta, start, True, hidden, read, False, gradient, weight, width, fan_in, rows, _ZERO)
        if read > 0:
            matmul(delta, start, False, parameters, weight, False, delta, read, rows, fan_in, width, _ZERO)
