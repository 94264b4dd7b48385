"""The site's figures of the surrogates, drawn from the classes that train (``python docs/pictures.py DIR``).

A policy of two actions in one state: the old one takes ours with probability 1/4, the new one with the
ratio's multiple of that. So every ratio up to 4 is a policy, and the divergences are the exact ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch as th
from matplotlib.axes import Axes
from stable_baselines3.common.distributions import CategoricalDistribution

from sppo.surrogates import MDPO, PPO, SMDPO, SPPO, Sample, Surrogate, kl_divergence

OLD = 0.25
RATIO = th.linspace(0.25, 2.0, 701, dtype=th.float64)
#: advantage -> how it is drawn
SIGNS = {1.0: "-", -1.0: "--"}
COLOURS = (PPO.colour, SPPO.colour, "#d55e00")


def policy(probability: th.Tensor) -> CategoricalDistribution:
    """The distribution of two actions of which ours has this probability."""
    return CategoricalDistribution(2).proba_distribution(th.stack([probability, 1 - probability], -1).log())


def curve(surrogate: Surrogate, advantage: float) -> tuple[th.Tensor, th.Tensor]:
    """The objective at every ratio, and its slope in the log-ratio."""
    log_ratio = RATIO.log().requires_grad_()
    old = th.full_like(RATIO, OLD)
    log_probs, advantages = (old.log() + log_ratio, old.log()), th.full_like(RATIO, advantage)
    sample = Sample(*log_probs, advantages, policy(OLD * log_ratio.exp()), policy(old))
    objective = surrogate.objective(sample)
    (slope,) = th.autograd.grad(objective.sum(), log_ratio)
    return objective.detach(), slope


def panels(path: Path, surrogates: dict[str, Surrogate], budget: float | None = None) -> None:
    """Shape and slope of each surrogate, for a good and a bad action, within the budget if there is one."""
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.3), sharex=True, layout="constrained")
    inside = kl_divergence(policy(th.full_like(RATIO, OLD)), policy(OLD * RATIO)) <= (budget or th.inf)
    for (label, surrogate), colour in zip(surrogates.items(), COLOURS, strict=False):
        for advantage, style in SIGNS.items():
            objective, slope = curve(surrogate, advantage)
            # Shapes are compared as distances from their value at the old policy, where the ratio is 1.
            shape = objective - objective[(RATIO - 1).abs().argmin()]
            look = {"color": colour, "linestyle": style}
            legend = f"{label}, A {'>' if advantage > 0 else '<'} 0"
            axes[0].plot(RATIO[inside], shape[inside], label=legend, **look)
            axes[1].plot(RATIO[inside], slope[inside], **look)
    for axis, title in zip(axes, ("objective, from its value at x = 1", "slope in log x"), strict=True):
        _frame(axis, title)
        for edge in RATIO[inside][[0, -1]] if budget else []:
            axis.axvline(edge.item(), color="0.4", linewidth=3)
    figure.legend(
        loc="outside lower center", ncols=4 if len(surrogates) < 3 else 3, fontsize=8, frameon=False
    )
    # No date and no random names: the same picture is the same file.
    with plt.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _frame(axis: Axes, title: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("ratio x = π/π_t")
    axis.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axis.axvline(1, color="0.8", linewidth=0.8, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)


def draw(directory: Path) -> None:
    """Every picture, as SVG files."""
    directory.mkdir(parents=True, exist_ok=True)
    panels(directory / "clip.svg", {"PPO": PPO(clip_range=0.3), "sPPO": SPPO(clip_range=0.3)})
    modes: dict[str, Surrogate] = {
        "PPO symmetric": PPO(clip_range=0.3, clip_mode="symmetric"),
        "sPPO one-sided": SPPO(clip_range=0.3),
        "sPPO two-sided": SPPO(clip_range=0.3, clip_mode="two-sided"),
    }
    panels(directory / "clip_modes.svg", modes)
    panels(directory / "divergence.svg", {"MDPO": MDPO(eta=0.3), "sMDPO": SMDPO(eta=0.3)})
    panels(directory / "trust_region.svg", {"direct": MDPO(), "softmax": SMDPO()}, budget=0.03)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
