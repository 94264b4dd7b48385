"""``python -m sppo inspect FILE``: what a file holds and what it would run, without loading it."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from sppo.loading import allowlist
from sppo.loading.budget import Budget
from sppo.loading.errors import LoadError, NotRestorable, brief, printable, refused
from sppo.loading.model_file import ModelFile, read_model_file, settable
from sppo.loading.normalization import Normalization
from sppo.loading.pickletree import Call, Tree, parse
from sppo.loading.rebuild import BUILDERS, Rebuilder, called, canonical, setters
from sppo.loading.tensors import tensors_in

#: How cloudpickle writes functions and classes with their code, and the calls that belong to it.
_BY_VALUE = {"cloudpickle._make_function": "function", "cloudpickle._make_skeleton_class": "class"}
_PARTS = {
    f"cloudpickle.{name}"
    for name in ("_builtin_type", "_make_empty_cell", "_make_cell", "_function_setstate", "_class_setstate")
}
#: What only makes values: listing it would hide the rest. Spaces hold random generators.
_HARMLESS = {*BUILDERS, "numpy.ndarray", "builtins.float"} - _BY_VALUE.keys()
_HARMLESS |= {f"numpy.random._pickle.__{name}_ctor" for name in ("bit_generator", "generator")}
_HARMLESS |= {f"numpy.random._pcg64.{name}" for name in ("PCG64", "PCG64DXSM")}
_HARMLESS |= {f"numpy.random.bit_generator.{n}" for n in ("SeedSequence", "__pyx_unpickle_SeedSequence")}
_MAX_LISTED = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; 0 if the safe loader restores the whole file, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m sppo inspect",
        description="List what a model (.zip) or VecNormalize (.pkl) file holds, what the safe loader "
        "restores of it, and what it would run if it were trusted. Nothing in the file is run.",
        epilog="exit code: 0 if everything can be restored safely, 1 if something is left out or damaged",
    )
    parser.add_argument("file", type=Path)
    path = parser.parse_args(argv).file
    try:
        lines, complete = report(path.read_bytes(), str(path))
    except (OSError, LoadError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        print(printable(f"{path}: it cannot be read: {reason}" if reason else str(error), 2000))
        return 1
    print("\n".join(lines))
    return 0 if complete else 1


def report(raw: bytes, label: str) -> tuple[list[str], bool]:
    """The lines of the report, and whether everything in the file can be restored safely.

    :raises LoadError: if the file is damaged, or something else than it seems
    """
    with refused(label):
        if zipfile.is_zipfile(BytesIO(raw)) or raw.startswith(b"PK\x03\x04"):
            return _model_report(raw, label)
        return _pickle_report(raw, label)


def _model_report(raw: bytes, label: str) -> tuple[list[str], bool]:
    # Here, because the algorithms import this package.
    from sppo import SPPO, MaskableRecurrentSPPO, MaskableSPPO, RecurrentSPPO

    found = read_model_file(raw, settable(SPPO, MaskableSPPO, RecurrentSPPO, MaskableRecurrentSPPO), {})
    lines = [f"{label}: a model saved by Stable-Baselines3 {printable(found.version, 20)}", "", "members"]
    lines += [f"  {name:<28} {size:>12,} bytes" for name, size in found.members.items()]
    lines += ["", "weights (read as numbers only)"]
    for name, values in found.weights.items():
        tensors = list(tensors_in(values))
        lines.append(f"  {name:<28} {len(tensors)} tensors, {sum(t.numel() for t in tensors):,} numbers")
    lines += ["", "entries"]
    lines += [_entry_line(key, found) for key in found.entries]
    if found.normalization is not None:
        lines += ["", "statistics of VecNormalize (read as numbers only)", *_statistics(found.normalization)]
    calls = [f"  {name[:28]:<28} {call}" for name, tree in found.trees.items() for call in suspicious(tree)]
    if found.data.get("tensorboard_log"):
        folder = printable(str(found.data["tensorboard_log"]), 200)
        lines += ["", f"Training on would write TensorBoard logs to {folder}"]
    return lines + _verdict(calls, bool(found.left_out)), not found.left_out and not calls


def _pickle_report(raw: bytes, label: str) -> tuple[list[str], bool]:
    with refused(label, " (it is neither a zip archive nor a readable pickle)"):
        tree = parse(raw, Budget(len(raw)))
    calls = [f"  {call}" for call in suspicious(tree)]
    try:
        restored = Rebuilder(tree).root()
    except NotRestorable as reason:
        why = printable(str(reason), 300)
        return [f"{label}: a pickle that is not restored: {why}", *_verdict(calls, True)], False
    lines = _statistics(restored) if isinstance(restored, Normalization) else []
    kind = "VecNormalize" if lines else type(restored).__name__
    return [f"{label}: a pickled {kind}", "", *lines, *_verdict(calls, False)], not calls


def _statistics(normalization: Normalization) -> list[str]:
    settings = {**vars(normalization)}
    parts = {printable(key, 28) or "observations": part for key, part in settings.pop("observations").items()}
    lines = [f"  {key:<28} {part.mean.shape}, of {part.count:,.0f} samples" for key, part in parts.items()]
    lines.append(f"  {'returns':<28} of {settings.pop('returns').count:,.0f} samples")
    return lines + [f"  {name:<28} {value}" for name, value in settings.items()]


def _entry_line(key: str, found: ModelFile) -> str:
    name = printable(key, 28)
    reason = found.left_out.get(printable(key, 80))
    if reason is not None:
        return f"  {name:<28} LEFT OUT  {printable(reason, 200)}"
    if key not in found.data:
        return f"  {name:<28} ignored   (set up anew)"
    return f"  {name:<28} restored  {brief(found.data[key])}"


def _verdict(calls: list[str], left_out: bool) -> list[str]:
    if calls:
        head = "RUNS CODE if it is trusted (trust=True, or Stable-Baselines3's own load):"
        return ["", head, *calls, "The safe loader runs none of this."]
    if left_out:
        return ["", "Some entries cannot be restored safely, see above; the safe loader leaves them out."]
    return ["", "The safe loader restores all of it, and nothing in it would run."]


def suspicious(tree: Tree) -> list[str]:
    """The calls and imports of a pickle that do more than make values, in words."""
    states = setters(tree)
    found = [_by_value(call, states.get(id(call), {})) for call in tree.calls if called(call) in _BY_VALUE]
    # The other calls that make a function belong to the one that was just listed.
    quiet = _HARMLESS | _BY_VALUE.keys() | (_PARTS if found else set())
    found += [describe(call) for call in tree.calls if called(call) not in quiet]
    functions = {id(call.function) for call in tree.calls}
    for name in tree.globals:
        if id(name) not in functions and canonical(name) not in quiet:
            try:
                allowlist.resolve(name.module, name.name)
            except NotRestorable:
                found.append(f"imports {printable(str(name), 100)}")
    found = list(dict.fromkeys(found))
    more = [f"... and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
    return found[:_MAX_LISTED] + more


def _by_value(call: Call, slots: Mapping[str, object]) -> str:
    """A function or class that comes with its code, in words."""
    texts = [slots.get("__module__"), slots.get("__qualname__")]
    if texts == [None, None] and isinstance(call.args, tuple):
        texts = [part for part in call.args if isinstance(part, str)]
    name = ".".join(text[:100] for text in texts[:2] if isinstance(text, str))
    return f"the {_BY_VALUE[called(call)]} {printable(name, 100)}, with its code"


def describe(call: Call) -> str:
    """A call in words, with the plain ones of its arguments."""
    arguments = call.args[:4] if isinstance(call.args, tuple) else ()
    texts = [brief(part) if isinstance(part, (str, bytes, int, float)) else "..." for part in arguments]
    return f"calls {printable(str(call), 100)}({printable(', '.join(texts), 100)})"
