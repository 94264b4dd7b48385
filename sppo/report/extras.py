"""Optional packages: asked for before minutes are spent on reading records."""

from __future__ import annotations

import importlib


def require(*packages: str, extra: str) -> None:
    """Raise an error that names the extra if one of the packages is not installed."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            hint = f'pip install ".[{extra}]" in the checkout'
            raise ModuleNotFoundError(f"{package} is not installed: {hint}") from error
