"""Loading models without running what their files hold: the hooks into upstream's methods."""

from __future__ import annotations

import io
import json
import pathlib
import zipfile
from collections.abc import Iterable
from typing import Any, Self

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import FloatSchedule

from sppo.loading.model_file import SCHEDULES_MEMBER
from sppo.loading.restore import checked, fitting_weights
from sppo.loading.schedules import SCHEDULE_KEYS, LeftOut, missing, stored


class SafeLoading(OnPolicyAlgorithm):
    """Mix-in that reads model files as data, through :mod:`sppo.loading`."""

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """Save the model, as upstream does.

        Schedules that are functions, but constant or linear, are stored by value besides: ``load`` restores
        them without running the file's code.
        """
        found = {key: stored(value) for key, value in vars(self).items() if key != "lr_schedule"}
        by_value = {key: value for key, value in found.items() if value is not None}
        if not by_value:
            return super().save(path, exclude, include)
        stream = io.BytesIO()
        super().save(stream, exclude, include)
        with zipfile.ZipFile(stream, "a") as archive:
            archive.writestr(SCHEDULES_MEMBER, json.dumps(by_value))
        file = open_path(path, "w", verbose=0, suffix="zip")
        file.write(stream.getvalue())
        if isinstance(path, (str, pathlib.Path)):
            file.close()
        return None

    @classmethod
    def load(
        cls,
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        *,
        trust: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load a model, as upstream's ``load`` does, but without running code that the file holds.

        What cannot be restored so (a pickled lambda as a learning rate, say) is left out, named in one
        warning, and asked for when training continues.

        :param trust: unpickle the file as upstream does, which runs whatever the file says
        """
        options = (print_system_info, force_reset)
        if trust:
            return super().load(path, env, device, custom_objects, *options, **kwargs)
        with checked(cls, path, env, custom_objects, kwargs) as file:
            model = super().load(file.stream, env, device, file.custom_objects, *options, **kwargs)
        file.finish(model)
        return model

    def set_parameters(
        self,
        load_path_or_dict: str | pathlib.Path | io.BufferedIOBase | dict[str, Any],
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
        left_out: dict[str, str] = vars(self).get("_left_out") or {}
        still = {key: reason for key, reason in left_out.items() if not self._given_since(key)}
        if still:
            raise ValueError(missing(still))

    def _given_since(self, name: str) -> bool:
        """Whether a schedule that was left out has been set on the model."""
        value = getattr(self, name, None)
        inner = value.value_schedule if isinstance(value, FloatSchedule) else value
        return name in SCHEDULE_KEYS and not isinstance(inner, LeftOut)
