"""Which classes and functions a file may refer to, found without importing anything that the file names.

Two sources: a fixed table of classes from the libraries we depend on, and what the running program has
already imported: classes of the user's own that derive from the libraries' base classes, and, as schedules,
functions of one argument.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable import buffers as maskable_buffers
from sb3_contrib.common.maskable import policies as maskable_policies
from sb3_contrib.common.recurrent import buffers as recurrent_buffers
from sb3_contrib.common.recurrent import policies as recurrent_policies
from stable_baselines3.common import buffers, policies, torch_layers
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from sppo.loading.errors import NotRestorable
from sppo.loading.pickletree import ATOMS

#: A class of the user's own must derive from one of these.
BASES: tuple[type, ...] = (th.nn.Module, th.optim.Optimizer, spaces.Space, buffers.BaseBuffer)

#: Packages whose classes are admitted by the table alone: among their many classes and functions are some
#: that read files or call their arguments.
CLOSED_PACKAGES = frozenset(
    {"torch", "torchvision", "torchaudio", "functorch", "numpy", "scipy", "numba", "stable_baselines3"}
    | {"sb3_contrib", "gymnasium", "gym", "cloudpickle", "tensorboard", "setuptools", "pip", "sppo"}
    | set(sys.stdlib_module_names)
)
#: functions with *args or **kwargs, generators and coroutines
_UNUSUAL = 0x2AC
_MODULES = [th.nn, th.optim, torch_layers, policies, maskable_policies, recurrent_policies]
_MODULES += [buffers, maskable_buffers, recurrent_buffers]
#: ``(module, qualified name)`` -> class, for the classes of the libraries that a file may name
_TABLE: dict[tuple[str, str], type] = {}
Admitted = TypeVar("Admitted", bound=type)


def admit(cls: Admitted) -> Admitted:
    """Let files name a class: a decorator for those of this package."""
    _TABLE[cls.__module__, cls.__qualname__] = cls
    return cls


for _found in (RMSpropTFLike, *(cls for module in _MODULES for cls in vars(module).values())):
    # Parallel layers place their contents on other devices.
    if isinstance(_found, type) and issubclass(_found, BASES) and _found is not th.nn.DataParallel:
        admit(_found)
for _code in "?bBhHiIlLqQefdFD":
    admit(np.dtype(_code).type)


def resolve(module: str, name: str) -> Any:
    """What a file means by ``module.name``: a class of the table, or a class or function of the user's."""
    if (module, name) in _TABLE:
        return _TABLE[module, name]
    found = _imported(module, name)
    if isinstance(found, types.FunctionType):
        code = found.__code__
        required = code.co_argcount - len(found.__defaults__ or ())
        if required > 1 or not code.co_argcount or code.co_kwonlyargcount > len(found.__kwdefaults__ or ()):
            raise NotRestorable(f"{module}.{name} is no function of one argument")
    elif not any(base in type.__dict__["__mro__"].__get__(found) for base in BASES):
        raise NotRestorable(f"{module}.{name} derives from no class of torch, Stable-Baselines3 or gymnasium")
    return found


def closure(module: str, name: str, variables: Mapping[str, object]) -> types.FunctionType:
    """The function ``outer.<locals>.inner`` of the program's own, with the file's numbers in its closure.

    Its code is the program's; the function around it is not called.
    """
    outer = _imported(module, name.partition(".<locals>.")[0])
    wanted = (name, tuple(variables), 1, 0)
    for code in outer.__code__.co_consts if isinstance(outer, types.FunctionType) else ():
        if (
            isinstance(code, types.CodeType)
            and (code.co_qualname, code.co_freevars, code.co_argcount, code.co_kwonlyargcount) == wanted
            and not code.co_flags & _UNUSUAL
            and all(isinstance(value, ATOMS) for value in variables.values())
        ):
            cells = tuple(types.CellType(value) for value in variables.values())
            return types.FunctionType(code, vars(sys.modules[module]), code.co_name, None, cells)
    raise NotRestorable(f"{module}.{name} is another function in this program")


def _imported(module: str, name: str) -> types.FunctionType | type:
    """A class or function that is already in memory, looked up without running anybody's ``__getattr__``."""
    if module.partition(".")[0] in CLOSED_PACKAGES and module != "__main__":
        raise NotRestorable(f"{module}.{name} is not among the classes that a file may use")
    found: object = sys.modules.get(module)
    namespace = object.__getattribute__(found, "__dict__") if isinstance(found, types.ModuleType) else {}
    *outer, last = name.split(".")
    for part in outer:
        # Only classes are walked through: functions and instances lead to everything else.
        found = None if part.startswith("__") else namespace.get(part)
        namespace = type.__dict__["__dict__"].__get__(found) if isinstance(found, type) else {}
    found = None if last.startswith("__") else namespace.get(last)
    if not isinstance(found, type) and (outer or not isinstance(found, types.FunctionType)):
        raise NotRestorable(
            f"{module}.{name} is not imported: import it before loading, if you know and trust it"
        )
    if (found.__module__, found.__qualname__) != (module, name):
        # Another name for a class of a closed package, say.
        raise NotRestorable(f"{module}.{name} is another name of {found.__module__}.{found.__qualname__}")
    return found
