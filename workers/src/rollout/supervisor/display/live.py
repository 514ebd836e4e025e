"""A run as a block that is redrawn in place, on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollout.protocol.status import Status
from rollout.supervisor.display.facts import Fact, render_facts, render_seconds
from rollout_api.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

BAR_COLUMNS = 36
HEAD = frozenset({"step", "eta"})
"""Facts that stand beside the bar."""


class LiveDisplay:
    """Draws from the start, so that waiting for the first sign of life is seen too."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._started_at = time.monotonic()
        self._status: Status | None = None
        self._console = Console(stderr=True)
        self._live = Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=4, transient=False
        )
        self._live.start()

    def show(self, status: Status) -> None:
        """Draw this from now on."""
        self._status = status

    def note(self, text: str) -> None:
        """Print above the block."""
        self._console.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop redrawing; the last block stays. Idempotent."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        return build_block(self._title, self._status, time.monotonic() - self._started_at)


def build_block(title: str, status: Status | None, seconds: float) -> RenderableType:
    """What a live display shows ``seconds`` after its start; ``status`` None: nothing answers yet."""
    from rich.console import Group

    facts = () if status is None else render_facts(status)
    shown = {fact.label: fact.value for fact in facts}
    head = [shown.get("step", "0 (starting)"), render_seconds(seconds)]
    if "eta" in shown:
        head.append(f"eta {shown['eta']}")
    return Group(
        _head(title, status, "  ".join(head)), _grid(f for f in facts if f.label not in HEAD)
    )


def _head(title: str, status: Status | None, text: str) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total = None if status is None else status.steps_max
    done = 0 if status is None else status.step
    bar = ProgressBar(total=total, completed=done, width=BAR_COLUMNS, pulse=not total or not done)
    head = Table.grid(padding=(0, 2))
    head.add_row(Text(visible(title), style="bold"), bar, Text(visible(text)))
    return head


def _grid(facts: Iterable[Fact]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for fact in facts:
        grid.add_row("", Text(fact.label, style="dim"), Text(visible(fact.value)))
    return grid
