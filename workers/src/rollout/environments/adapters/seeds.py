"""Rows of environments that make their worlds from a seed: none of them is in two splits."""

from __future__ import annotations

from typing import Any

SEEDS = {
    "train": range(100_000),
    "selection": range(100_000, 100_256),
    "report": range(200_000, 200_512),
}
"""What each split's worlds are made from."""


def seed_rows(split: str) -> list[dict[str, Any]]:
    """A seed each."""
    return [{"prompt": f"{split} {seed}", "seed": seed} for seed in SEEDS[split]]
