"""One meaning per name: no two public classes of a distribution are called the same."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def public_classes(source: Path) -> dict[str, list[str]]:
    """Classes at the top of a module, by name: the places where they stand."""
    found = defaultdict(list)
    for file in sorted(source.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return found


@pytest.mark.parametrize("distribution", ["crds", "operator", "workers"])
def test_no_two_public_classes_of_a_distribution_share_a_name(distribution):
    found = public_classes(ROOT / distribution / "src")
    assert found, "nothing was looked at"
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert not shared, "give one of each a name that says what it is"
