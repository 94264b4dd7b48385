"""RL Zoo with sppo's algorithms: ``python -m sppo.zoo train --algo sppo --env HalfCheetah-v5``.

Registers ``sppo``, ``sppo_lstm``, ``sppo_mask`` and ``sppo_mask_lstm`` beside the zoo's own algorithms and
runs the zoo's ``train``, ``enjoy`` or plotting scripts, with their own options. Unless ``--conf-file`` says
otherwise the hyperparameters come from ``sppo/hyperparams/``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sppo.algorithms import SPPO, MaskableRecurrentSPPO, MaskableSPPO, RecurrentSPPO
from sppo.algorithms.maskable_recurrent import MaskableRecurrentEvalCallback
from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm
from sppo.parameters import LINEAR

try:
    from rl_zoo3 import exp_manager, hyperparams_opt
    from rl_zoo3 import utils as zoo_utils
except ImportError as error:
    raise ImportError('sppo.zoo needs the RL Zoo: pip install ".[zoo]"') from error

HYPERPARAMS = Path(__file__).parent / "hyperparams"

#: zoo script -> module with a function of the same name
SCRIPTS = {
    "train": "rl_zoo3.train",
    "enjoy": "rl_zoo3.enjoy",
    "plot_train": "rl_zoo3.plots.plot_train",
    "plot_from_file": "rl_zoo3.plots.plot_from_file",
    "all_plots": "rl_zoo3.plots.all_plots",
}


class _AsksForMasks:
    """Mix-in for the zoo, which knows nothing of masks: they come from the environment, if it offers any."""

    env: VecEnv | None
    #: the environment that ``enjoy`` plays in; ``predict`` asks it for masks
    test_env: VecEnv | None = None

    def learn(self, *args: object, **kwargs: object) -> Self:
        assert self.env is not None
        return super().learn(*args, use_masking=is_masking_supported(self.env), **kwargs)  # type: ignore[misc]

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        env = type(self).test_env
        if action_masks is None and env is not None and is_masking_supported(env):
            action_masks = get_action_masks(env)
        return super().predict(observation, state, episode_start, deterministic, action_masks)  # type: ignore[misc]


class ZooMaskableSPPO(_AsksForMasks, MaskableSPPO):
    """MaskableSPPO as the zoo calls it."""


class ZooMaskableRecurrentSPPO(_AsksForMasks, MaskableRecurrentSPPO):
    """MaskableRecurrentSPPO as the zoo calls it."""


ALGORITHMS = {
    "sppo": SPPO,
    "sppo_lstm": RecurrentSPPO,
    "sppo_mask": ZooMaskableSPPO,
    "sppo_mask_lstm": ZooMaskableRecurrentSPPO,
}
#: algorithms with masks -> what evaluates them
EVALUATIONS: dict[str, type[EvalCallback]] = {
    "sppo_mask": MaskableEvalCallback,
    "sppo_mask_lstm": MaskableRecurrentEvalCallback,
}


class ExperimentManager(exp_manager.ExperimentManager):
    """The zoo's experiment manager, which also evaluates with masks."""

    def __init__(self, args: argparse.Namespace, algo: str, *others: Any, **kwargs: Any) -> None:
        if algo in ALGORITHMS and kwargs.get("config") is None:
            kwargs["config"] = str(HYPERPARAMS / f"{algo}.yml")
        super().__init__(args, algo, *others, **kwargs)
        if algo in EVALUATIONS and self.optimize_hyperparameters:
            raise ValueError(
                "the zoo's hyperparameter optimisation evaluates without action masks: "
                f"optimise with --algo sppo, or write the study with {EVALUATIONS[algo].__name__}"
            )

    @staticmethod
    def _preprocess_schedules(hyperparams: dict[str, object]) -> dict[str, object]:
        """Turn ``lin_0.03`` into a schedule for our own parameters, too."""
        for key in ("eta", "kl_budget", "critic_learning_rate"):
            value = hyperparams.get(key)
            if isinstance(value, str) and value.startswith(LINEAR):
                hyperparams[key] = LinearSchedule(float(value.removeprefix(LINEAR)), 0.0, 1.0)
        return exp_manager.ExperimentManager._preprocess_schedules(hyperparams)

    def create_callbacks(self) -> None:
        super().create_callbacks()
        if self.algo in EVALUATIONS:
            self.callbacks = [_with_masks(each, EVALUATIONS[self.algo]) for each in self.callbacks]


def _with_masks(callback: BaseCallback, masked: type[EvalCallback]) -> BaseCallback:
    """The same evaluation with masks, where the environment offers them."""
    if not isinstance(callback, EvalCallback) or not is_masking_supported(callback.eval_env):
        return callback
    return masked(
        callback.eval_env,
        callback_on_new_best=callback.callback_on_new_best,
        n_eval_episodes=callback.n_eval_episodes,
        eval_freq=callback.eval_freq,
        log_path=None if callback.log_path is None else str(Path(callback.log_path).parent),
        best_model_save_path=callback.best_model_save_path,
        deterministic=callback.deterministic,
    )


def register() -> None:
    """Make the algorithms known to the zoo of this process; safe to call twice."""
    zoo_utils.ALGOS.update(ALGORITHMS)
    for name in ("HYPERPARAMS_SAMPLER", "HYPERPARAMS_CONVERTER"):
        table = getattr(hyperparams_opt, name)
        table.update(sppo=table["ppo"], sppo_lstm=table["ppo_lstm"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the zoo's scripts with our algorithms registered."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in SCRIPTS:
        print(f"usage: python -m sppo.zoo {{{','.join(SCRIPTS)}}} [the zoo's options]", file=sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    script, *options = arguments
    register()
    module = importlib.import_module(SCRIPTS[script])
    if script == "train":
        vars(module)["ExperimentManager"] = ExperimentManager
    elif script == "enjoy":
        known = zoo_utils.ALGOS | {name: _AsSaved(kind) for name, kind in ALGORITHMS.items()}
        vars(module).update(create_test_env=_remembering_test_env, ALGOS=known)
    # The zoo's scripts read sys.argv themselves.
    sys.argv = [f"sppo.zoo {script}", *options]
    getattr(module, script)()
    return 0


def _remembering_test_env(*args: Any, **kwargs: Any) -> VecEnv:
    _AsksForMasks.test_env = zoo_utils.create_test_env(*args, **kwargs)
    return _AsksForMasks.test_env


class _AsSaved:
    """An algorithm for ``enjoy``: plays with the statistics that a model carries, the best one's, say.

    The zoo has one file of them, from the end of the training.
    """

    def __init__(self, kind: type[SurrogateAlgorithm]) -> None:
        self._kind = kind

    def load(self, *args: Any, **kwargs: Any) -> SurrogateAlgorithm:
        model, env = self._kind.load(*args, **kwargs), _AsksForMasks.test_env
        normalize = None if env is None else unwrap_vec_normalize(env)
        if normalize is not None and model.normalization is not None and model.normalization.observations:
            normalize.obs_rms = model.normalized(normalize.venv).obs_rms
        return model


if __name__ == "__main__":
    # Run the importable module, not this `__main__` copy of it, so that classes are pickled by a name
    # that other programs can import.
    from sppo.zoo import main as zoo_main

    sys.exit(zoo_main())
