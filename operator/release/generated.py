"""Holds what is generated (definitions, charts, pages) to the models at the version that is released."""

from __future__ import annotations

from pathlib import Path

from rollout_api.generate.__main__ import find_differences as find_generated
from rollout_api.generate.outputs import build_outputs
from rollout_operator.chart import main as check_rules


def find_differences(tree: Path, version: str) -> list[str]:
    """Each generated file that is not what the models make at this version."""
    changed, stale = find_generated(tree, build_outputs(version))
    wrong = [f"{path}: not as `make generate` writes it" for path in changed]
    wrong += [f"{path}: nothing generates it" for path in stale]
    if check_rules(["--check", "--root", str(tree)]):
        wrong.append("charts/rollout/files/rbac.yaml: not as `make generate` writes it")
    return wrong
