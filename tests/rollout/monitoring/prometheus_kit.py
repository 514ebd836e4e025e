"""Debian's promtool for a test: rules are checked by the program that users have."""

from __future__ import annotations

import shutil

import pytest

from cluster import packages

PACKAGE = {"promtool": "prometheus"}


def tool(name: str) -> str:
    """Its path, installed where this process may; skips the test where it is not to be had."""
    packages.ensure(PACKAGE)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"cannot run here: there is no {name} (Debian's package prometheus has it)")
    return found
