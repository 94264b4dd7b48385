"""Which classes a file may refer to, found without importing anything that the file names.

Two sources: a fixed table of classes from the libraries we depend on, and classes of the user's own that
the running program has already imported and that derive from the libraries' base classes.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable import buffers as maskable_buffers
from sb3_contrib.common.maskable import policies as maskable_policies
from sb3_contrib.common.recurrent import buffers as recurrent_buffers
from sb3_contrib.common.recurrent import policies as recurrent_policies
from stable_baselines3.common import buffers, policies, torch_layers
from stable_baselines3.common.sb2_compat import rmsprop_tf_like

from sppo.loading.errors import NotRestorable

#: A class of the user's own must derive from one of these.
BASES: tuple[type, ...] = (th.nn.Module, th.optim.Optimizer, spaces.Space, buffers.BaseBuffer)

#: Packages whose classes are admitted by the table alone: among their many classes are some whose
#: constructors read files or call their arguments.
CLOSED_PACKAGES = frozenset(
    {"torch", "torchvision", "torchaudio", "functorch", "numpy", "scipy", "numba", "stable_baselines3"}
    | {"sb3_contrib", "gymnasium", "gym", "cloudpickle", "tensorboard", "setuptools", "pip"}
    | set(sys.stdlib_module_names)
)
#: Wrappers that place their contents on other devices.
_EXCLUDED_LAYERS = {"DataParallel"}


def _classes(module: types.ModuleType, base: type) -> Iterable[type]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, base):
            yield value


@functools.cache
def table() -> dict[tuple[str, str], type]:
    """``(module, qualified name)`` -> class, for the classes of the libraries that a file may name."""
    found = [layer for layer in _classes(th.nn, th.nn.Module) if layer.__name__ not in _EXCLUDED_LAYERS]
    found += _classes(th.optim, th.optim.Optimizer)
    found.append(rmsprop_tf_like.RMSpropTFLike)
    for module in (policies, maskable_policies, recurrent_policies):
        found += _classes(module, policies.BasePolicy)
    found += _classes(torch_layers, th.nn.Module)
    for module in (buffers, maskable_buffers, recurrent_buffers):
        found += _classes(module, buffers.BaseBuffer)
    found += [np.dtype(code).type for code in "?bBhHiIlLqQefdFD"]
    return {(cls.__module__, cls.__qualname__): cls for cls in found}


def resolve(module: str, name: str) -> type:
    """The class that a file means by ``module.name``.

    :raises NotRestorable: if it is neither in :func:`table` nor an imported class of the user's own
    """
    known = table().get((module, name))
    if known is not None:
        return known
    package = module.partition(".")[0]
    if package in CLOSED_PACKAGES and module != "__main__":
        raise NotRestorable(f"{module}.{name} is not among the classes that a file may use")
    found = _imported(module, name)
    if found is None:
        raise NotRestorable(
            f"{module}.{name} is not imported: import it before loading, if you know and trust it"
        )
    if (found.__module__, found.__qualname__) != (module, name):
        # Another name for a class of a closed package, say.
        raise NotRestorable(f"{module}.{name} is another name of {found.__module__}.{found.__qualname__}")
    if not any(base in type.__dict__["__mro__"].__get__(found) for base in BASES):
        raise NotRestorable(f"{module}.{name} derives from no class of torch, Stable-Baselines3 or gymnasium")
    return found


def _imported(module: str, name: str) -> type | None:
    """``module.name`` if it is already in memory, looked up without running anybody's ``__getattr__``."""
    found: object = sys.modules.get(module)
    if not isinstance(found, types.ModuleType):
        return None
    namespace = object.__getattribute__(found, "__dict__")
    for part in name.split("."):
        if part.startswith("__"):
            return None
        found = namespace.get(part)
        if not isinstance(found, type):
            # Only classes are walked through: functions and instances lead to everything else.
            return None
        namespace = type.__dict__["__dict__"].__get__(found)
    return found if isinstance(found, type) else None


def torch_dtype(module: str, name: str) -> th.dtype | None:
    """``torch.float32`` and its like, which pickles name as if they were functions."""
    value = vars(th).get(name) if module == "torch" else None
    return value if isinstance(value, th.dtype) else None
