"""Loading models without running what their files hold: the hooks into upstream's methods."""

from __future__ import annotations

import io
import json
import pathlib
import warnings
import zipfile
from collections.abc import Iterable
from typing import Any, Self

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecNormalize

from sppo.loading.model_file import NORMALIZATION_MEMBER, SCHEDULES_MEMBER
from sppo.loading.normalization import Normalization
from sppo.loading.restore import carried_normalization, checked, fitting_weights, read_bytes
from sppo.loading.schedules import stored


class SafeLoading(OnPolicyAlgorithm):
    """Mix-in that reads model files as data, through :mod:`sppo.loading`."""

    #: of the file that the model is from, until it is trained further
    _normalization: Normalization | None = None
    #: name -> why it was left out when the model was loaded
    _left_out: dict[str, str] | None = None

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """Save the model, as upstream does.

        Schedules that are functions, but constant or linear, are stored by value besides: ``load`` restores
        them without running the file's code. So are the statistics of a ``VecNormalize``, for
        :meth:`normalized`; ``exclude=["normalization"]`` leaves them out.
        """
        exclude = list(exclude or ())
        found = {key: stored(value) for key, value in vars(self).items() if key != "lr_schedule"}
        by_value = {key: value for key, value in found.items() if value is not None}
        members = {SCHEDULES_MEMBER: json.dumps(by_value)} if by_value else {}
        if "normalization" not in exclude and (normalization := self.normalization) is not None:
            members[NORMALIZATION_MEMBER] = normalization.as_json()
        stream = io.BytesIO()
        super().save(stream, exclude, include)
        with zipfile.ZipFile(stream, "a") as archive:
            for name, text in members.items():
                archive.writestr(name, text)
        file = open_path(path, "w", verbose=0, suffix="zip")
        file.write(stream.getvalue())
        if isinstance(path, (str, pathlib.Path)):
            file.close()

    @classmethod
    def load(
        cls,
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, object] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        *,
        trust: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load a model, as upstream's ``load`` does, but without running code that the file holds.

        What cannot be restored so (a pickled lambda as a learning rate, say) is left out, named in one
        warning, and asked for when training continues. If the model was trained under ``VecNormalize`` and
        ``env`` normalises observations otherwise, there is a warning, too: see :meth:`normalized`.

        :param trust: unpickle the file as upstream does, which runs whatever the file says
        """
        options = (print_system_info, force_reset)
        if trust:
            model = super().load(path, env, device, custom_objects, *options, **kwargs)
            model._normalization = carried_normalization(*read_bytes(path, "zip"), model.observation_space)
            if model._left_out:
                given = {**(custom_objects or {}), **kwargs}
                model._left_out = {key: reason for key, reason in model._left_out.items() if key not in given}
        else:
            with checked(cls, path, env, custom_objects, kwargs) as (found, anew, label):
                model = super().load(anew, env, device, found.data, *options, **kwargs)
            model._normalization = found.normalization
            if found.needed:
                model._left_out = found.needed
            if found.left_out:
                parts = "; ".join(f"{key}: {reason}" for key, reason in found.left_out.items())
                warnings.warn(
                    f"{label}: left out, because it cannot be restored without running the file's code: "
                    f"{parts}. Prediction works without. Give what training needs with custom_objects, or "
                    "load a file that you trust with trust=True; `python -m sppo inspect` shows its contents",
                    stacklevel=2,
                )
        model._compare_normalization()
        return model

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Set the environment, as upstream does; warns as :meth:`load` if it normalises otherwise."""
        super().set_env(env, force_reset)
        self._compare_normalization()

    @property
    def normalization(self) -> Normalization | None:
        """What ``VecNormalize`` did to the observations and rewards of the training, if that is known."""
        known = self._normalization
        return known or Normalization.to_save(self.get_vec_normalize_env(), self.observation_space)

    def normalized(self, env: GymEnv, training: bool = False) -> VecNormalize:
        """Wrap an environment in a ``VecNormalize`` with the statistics that the model was trained with::

            model = SPPO.load("model")
            evaluate_policy(model, model.normalized(make_vec_env("HalfCheetah-v5")))

        :param env: environments, vectorised or not, as they were below the ``VecNormalize`` of the training
        :param training: to train on: rewards are normalised as they were, and new data change the statistics;
            otherwise those stay as they are, and rewards are the environment's
        """
        normalization = self.normalization
        if normalization is None:
            raise ValueError(
                "this model has no statistics of VecNormalize: it was trained without, or saved by another "
                "program. For a file that VecNormalize.save wrote, use sppo.load_vec_normalize(path, env)"
            )
        return normalization.wrap(env, training)

    def _compare_normalization(self, training: bool = False) -> None:
        """Warn if the environment does other than the training that the model's file is from.

        :param training: it is about rewards now, and the statistics are the environment's from here on
        """
        known, env = self._normalization, self.get_vec_normalize_env()
        if known is None or self.env is None:
            return
        if training:
            self._normalization = None
        difference = known.difference(env, training)
        if difference is not None:
            warnings.warn(
                f"the environment {difference}, unlike the VecNormalize that this model was trained under: "
                "give it as model.normalized(env); to train on, as sppo.load_vec_normalize(model_path, env)",
                stacklevel=4 if training else 3,
            )

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_normalization"]

    def set_parameters(
        self,
        load_path_or_dict: str | pathlib.Path | io.BufferedIOBase | dict[str, th.Tensor],
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """Load weights into this model, as upstream does, from a file or a dictionary of them.

        :raises LoadError: if a file is damaged or its weights do not fit; the model is then as before
        """
        if isinstance(load_path_or_dict, dict):
            return super().set_parameters(load_path_or_dict, exact_match, device)
        with fitting_weights(load_path_or_dict, self) as weights:
            return super().set_parameters(weights, exact_match, device)

    def require_complete(self) -> None:
        """Refuse to train without something that was left out when the model was loaded."""
        if self._left_out:
            parts = "; ".join(f"{name} ({reason})" for name, reason in self._left_out.items())
            names = ", ".join(f'"{name}": ...' for name in self._left_out)
            raise ValueError(
                f"training needs what was left out when the model was loaded: {parts}. Give it by name, load("
                f"path, custom_objects={{{names}}}), or, for a file that you trust, load(path, trust=True)"
            )
