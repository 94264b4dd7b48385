"""Sphinx: the site under docs/, built by ``bash scripts/docs.sh``."""

from __future__ import annotations

import sys
from pathlib import Path

from docutils import nodes
from docutils.nodes import Element
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pictures  # noqa: E402

import sppo  # noqa: E402

project = "sppo"
author = "The sppo developers"
version = release = sppo.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx_copybutton"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "sppo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
copybutton_exclude = ".linenos, .gp, .go"

#: What our docstrings call upstream's, and where upstream documents it.
UPSTREAM = {
    "stable_baselines3.PPO": "https://stable-baselines3.readthedocs.io/en/master/modules/ppo.html",
    "sb3_contrib.MaskablePPO": "https://sb3-contrib.readthedocs.io/en/master/modules/ppo_mask.html",
    "sb3_contrib.RecurrentPPO": "https://sb3-contrib.readthedocs.io/en/master/modules/ppo_recurrent.html",
}


def link_upstream(app: Sphinx, env: object, node: Element, content: Element) -> Element | None:
    address = UPSTREAM.get(node.get("reftarget", ""))
    return None if address is None else nodes.reference("", "", content, refuri=address)


def setup(app: Sphinx) -> None:
    app.connect("missing-reference", link_upstream)
    app.connect("builder-inited", lambda app: pictures.draw(HERE / "_build" / "pictures"))
