"""Imported by every fork server of a test: what it forks meets the spells that ``python -m`` meets in ``sitecustomize``."""

from collections.abc import Sequence

import sitecustomize

from rollout.common import parent_death

live = parent_death.main


def main(argv: Sequence[str]) -> None:
    """Meet them first."""
    sitecustomize.cast(list(argv))
    live(argv)


parent_death.main = main
