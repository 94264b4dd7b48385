"""Reads what ``torch.save`` wrote: a zip archive with a pickle and one member of raw numbers per tensor.

``torch.load(weights_only=True)`` filters names while it unpickles and hands the archive to a reader in
C++. Here both are data: the pickle is parsed into an inert tree, the archive is read with limits, and a
tensor is made only if its numbers are really there. What comes out is then given to upstream's loader,
written anew, so that its ``weights_only=True`` sees nothing that did not pass here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch as th

from sppo.loading.archive import Archive
from sppo.loading.budget import Budget
from sppo.loading.errors import LoadError, NotRestorable
from sppo.loading.pickletree import Call, Global, parse
from sppo.loading.rebuild import Rebuilder, builds, lengths

_STORAGES = {name: dtype for dtype, name in th.storage._dtype_to_storage_type_map().items() if name[0] != "Q"}


def read_tensors(data: bytes, budget: Budget) -> tuple[object, int]:
    """What ``torch.save`` wrote, of tensors and plain values, and how many bytes its numbers have."""
    archive = Archive(data, budget)
    pickles = [name for name in archive.sizes if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise LoadError("it was not written by torch.save in the format since torch 1.6")
    prefix = pickles[0].removesuffix("data.pkl")
    if f"{prefix}byteorder" in archive.sizes and archive.read(f"{prefix}byteorder") != b"little":
        raise LoadError("its numbers are not little-endian")
    storages: dict[str, th.Tensor] = {}

    def storage(_: Rebuilder, call: Call) -> th.Tensor:
        """The flat tensor behind ``("storage", type, key, location, count)``; the location is ignored."""
        match call.args:
            case (("storage", Global("torch", kind), str(key), _, count),) if kind in _STORAGES:
                dtype, member = _STORAGES[kind], f"{prefix}data/{key}"
            case _:
                raise NotRestorable("it has tensors of an unexpected kind")
        if member not in storages:
            # The numbers are copied once here, written anew, and read again by upstream.
            budget.memory(3 * archive.sizes[member])
            storages[member] = _flat_tensor(archive.read(member), dtype)
        found = storages[member]
        if found.dtype != dtype or len(found) != count:
            raise NotRestorable(f"a tensor does not have the {len(found)} numbers that are there")
        return found

    values = Rebuilder(parse(archive.read(pickles[0]), budget), {".persistent": storage}).root()
    for tensor in tensors_in(values):
        # An optimizer copies each tensor of its state into the type of the weights, shared or not.
        budget.memory(8 * tensor.numel())
    return values, sum(numbers.nbytes for numbers in storages.values())


def tensors_in(value: object) -> Iterator[th.Tensor]:
    """Every tensor in containers, as often as it occurs."""
    if isinstance(value, th.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


def _flat_tensor(raw: bytes, dtype: th.dtype) -> th.Tensor:
    if not raw:
        return th.empty(0, dtype=dtype)
    if dtype is th.bool:
        return th.from_numpy(np.frombuffer(raw, np.uint8) != 0)
    # This refuses what is no multiple of a number's size.
    return th.frombuffer(bytearray(raw), dtype=dtype)


@builds("torch._utils._rebuild_tensor_v2")
def _tensor(rebuilder: Rebuilder, call: Call) -> th.Tensor:
    """A view of a storage; its last element must lie inside, and it must not repeat elements."""
    numbers, offset, size, stride = rebuilder.arguments(call, 6, 7)[:4]
    size, stride = lengths(size), lengths(stride)
    if not isinstance(numbers, th.Tensor) or type(offset) is not int or len(size) != len(stride):
        raise NotRestorable("a tensor is malformed")
    count = math.prod(size)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if offset < 0 or count > len(numbers) or (count and last >= len(numbers)):
        raise NotRestorable(f"a tensor of shape {size} does not fit into its {len(numbers)} numbers")
    return th.as_strided(numbers, size, stride, offset)
