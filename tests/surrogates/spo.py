"""CONTRIBUTING.md's example: a surrogate of one's own, complete."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sppo.surrogates import Sample, Surrogate, parameter


@dataclass(frozen=True)
class SPO(Surrogate):
    """A quadratic penalty on the ratio instead of a clip: A x - |A| (x - 1)^2 / (2 clip_range)."""

    name = "spo"
    title = "SPO"
    colour = "#d55e00"

    clip_range: float = parameter(0.2, "schedule", "where the penalty turns the slope", low=0, above=True)
    weight: float = parameter(1.0, "float", "weight of the penalty", low=0)

    def objective(self, sample: Sample) -> Tensor:
        penalty = sample.advantage.abs() * (sample.ratio - 1) ** 2 / (2 * self.clip_range)
        return sample.advantage * sample.ratio - self.weight * penalty

    def measured(self, sample: Sample) -> dict[str, Tensor]:
        return {"ratio_spread": sample.ratio.std()}

    def warnings(self) -> list[str]:
        return ["weight=0 keeps the policy nowhere: write weight=1.0, say"] if self.weight == 0 else []
