"""Pages as HTML text. Every value is escaped, and characters that hide or turn text are shown as escapes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from rollout.report.data import is_right
from rollout_api.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
NEVER = "-"


def render(template: str, **values: Any) -> str:
    """A page of ``templates``."""
    return _environment().get_template(template).render(**values)


def build_query(**values: Any) -> str:
    """``?a=1&b=2`` without what is None or empty; empty when nothing is left."""
    kept = {name: value for name, value in values.items() if value not in {None, ""}}
    return f"?{urlencode(kept)}" if kept else ""


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(TEMPLATES),
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    cast("dict[str, Any]", made.globals)["query"] = build_query
    made.filters.update(
        number=format_number,
        percent=_percent,
        count=_count,
        ago=_ago,
        moment=_moment,
        duration=_duration,
        size=_size,
        probability=_probability,
        right=lambda reward: is_right({"reward": reward}),
    )
    return made


def _finalize(value: Any) -> Any:
    """Of what somebody wrote no character acts; HTML of ours (``Markup``, ``safe``) goes through."""
    if value is None:
        return NEVER
    return visible(value) if type(value) is str else value


def format_number(value: float | None) -> str:
    """Three significant digits; thousands apart."""
    if value is None:
        return NEVER
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return NEVER if value is None else f"{100 * value:.1f} %"


def _count(value: int | None) -> str:
    return NEVER if value is None else f"{value:,}"


def _moment(at: float | None) -> str:
    """A time of this machine's zone, to the second, with its offset from UTC."""
    if at is None:
        return NEVER
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def _ago(at: float | None) -> str:
    if at is None:
        return NEVER
    seconds = max(0.0, time.time() - at)
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds:.0f} s ago"


def _size(number: int) -> str:
    """Bytes as a person reads them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number} B"


def _probability(value: float | None) -> str:
    return NEVER if value is None else f"{value:.4f}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
