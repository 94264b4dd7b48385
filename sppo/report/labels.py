"""How an algorithm is called and drawn: by its label in the study, and by what its runs are.

A label that begins with the name of a registered surrogate has that surrogate's title, place and colour.
Other labels (another class of algorithms, a name of the user's own) are shown as they are, after those, in
colours that are not taken. No module is imported for a name that is found in records.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from sppo.surrogates import REGISTRY, Surrogate

#: a name of matplotlib's, or where dashes begin and how long they and their gaps are
Dashes = Literal["-"] | tuple[float, tuple[float, ...]]

#: of Okabe and Ito's colour-blind-safe palette, which the surrogates' own colours are from as well
_PALETTE = ("#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7f7f7f", "#b8a800", "#e69f00", "#0072b2")
#: eleven, which shares no divisor with a number of colours: one that comes again has another marker
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")


class Look(NamedTuple):
    """How a line is drawn, and what a legend calls it."""

    title: str
    colour: str
    marker: str = ""
    line: Dashes = "-"


def _surrogate_named(label: str) -> type[Surrogate] | None:
    """``sppo-one-sided``, ``SPPO`` and ``sppo (gamma=1)`` are runs of ``sppo``."""
    names = [name for name in REGISTRY if re.match(rf"{re.escape(name)}($|[- ])", label, re.IGNORECASE)]
    return REGISTRY[max(names, key=len)] if names else None


def title_of(label: str, config: Mapping[str, object]) -> str:
    """The label for a reader, with the surrogate's variant where the label leaves it to the default.

    ``sppo`` is ``sPPO``, and ``sPPO two-sided`` if the configuration says so.
    """
    surrogate = _surrogate_named(label)
    if surrogate is None:
        return label.upper() if label == config.get("class") else label
    base, bracket, rest = label.partition(" (")
    own = base[len(surrogate.name) :].lstrip("-")
    variant = _variant(surrogate, config.get("parameters"))
    words = (surrogate.title, own, "" if variant in own else variant)
    return " ".join(word for word in words if word) + bracket + rest


def order_labels(names: Iterable[str]) -> list[str]:
    """The surrogates in the order of their registration, each with its variants; then the others by name."""
    known = [*REGISTRY.values(), None]
    return sorted(set(names), key=lambda label: (known.index(_surrogate_named(label)), label))


def looks(titles: Mapping[str, str]) -> dict[str, Look]:
    """Label -> how it is drawn, in the order of :func:`order_labels`; ``titles`` has a title for each."""
    ordered = order_labels(titles)
    own: dict[str, str] = {}
    for label in ordered:
        surrogate = _surrogate_named(label)
        if surrogate and surrogate.colour not in own.values():
            own[label] = surrogate.colour
    free = itertools.cycle([colour for colour in _PALETTE if colour not in own.values()] or _PALETTE)
    return {
        label: Look(titles[label], own.get(label) or next(free), marker)
        for label, marker in zip(ordered, itertools.cycle(_MARKERS), strict=False)
    }


def _variant(surrogate: type[Surrogate], parameters: object) -> str:
    """``two-sided``, where a choice of the parameters makes it another surrogate than it is by default."""
    given = parameters if isinstance(parameters, Mapping) else {}
    chosen = {
        name: given[name]
        for name, parameter in surrogate.parameters().items()
        if parameter.kind == "choice" and given.get(name) in parameter.choices
    }
    try:
        return surrogate(**chosen).label.removeprefix(surrogate.name).lstrip("-")
    except ValueError:
        return ""
