"""Exact dynamics: tabular MDPs, the paper's objectives and solvers, and its theory. No sampling, no networks.

>>> from sppo import exact
>>> exact.solve(exact.cliff_world(), "smdpo", "closed_form", iterations=2000, eta=0.03)
"""

from sppo.exact import objectives, theory
from sppo.exact.environments import cliff_world, deep_sea_treasure, from_gymnasium, random_mdp
from sppo.exact.framework import FMA, LinearSoftmax, MirrorMap, TabularSoftmax
from sppo.exact.linear_quadratic import double_integrator, lqr, random_lqr
from sppo.exact.mdp import Evaluation, Optimum, TabularMDP
from sppo.exact.solver import Result, solve
from sppo.exact.sweeping import SweepResult, sweep
from sppo.exact.value_gradient import improvement_eta, lower_bound_eta, value_gradient_ascent

__all__ = [
    "FMA",
    "Evaluation",
    "LinearSoftmax",
    "MirrorMap",
    "Optimum",
    "Result",
    "SweepResult",
    "TabularMDP",
    "TabularSoftmax",
    "cliff_world",
    "deep_sea_treasure",
    "double_integrator",
    "from_gymnasium",
    "improvement_eta",
    "lower_bound_eta",
    "lqr",
    "objectives",
    "random_lqr",
    "random_mdp",
    "solve",
    "sweep",
    "theory",
    "value_gradient_ascent",
]
