"""Packages of other libraries, which are the user's: imported when they are needed, named with what installs them."""

from __future__ import annotations

import importlib
from types import ModuleType

from rollout.errors import SpecError


def require_package(module: str, requirement: str) -> ModuleType:
    """The module. Raises SpecError where it, or something that it needs, is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(
            f"{module} cannot be imported ({error}): install it where rollout runs, with"
            f" `pip install {requirement}`"
        ) from error
