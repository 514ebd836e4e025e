"""Writes ``report.html`` and ``report.json``: everything inline, nothing fetched, no script needed."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from rollout.codec import DIGEST_SHOWN
from rollout.common.atomic_files import replace_text
from rollout.costs.telling import describe_folder
from rollout.report.data import DISPOSITIONS, ReportInput, headlines, is_right, summarise
from rollout.report.finite import finite
from rollout.report.gather import gather
from rollout.report.panels import plan_plots
from rollout.report.plots import render_svg

TEMPLATE = Path(__file__).with_name("page.html")
STYLE = Path(__file__).with_name("style.css")
SAMPLES_MAX = 24


def write_report(run_dir: Path) -> dict[str, Any]:
    """Write the report of a run folder and return its summary. Raises LedgerError."""
    data = gather(run_dir)
    summary = {**summarise(data), "cost": describe_folder(run_dir, os.environ)}
    document = {
        "summary": summary,
        "evaluations": list(data.evaluations),
        "steps": list(data.steps),
        "before": list(data.before[:SAMPLES_MAX]),
        "after": list(data.after[:SAMPLES_MAX]),
        "spec": data.spec,
        "versions": data.versions,
    }
    replace_text(
        run_dir / "report.json",
        json.dumps(finite(document), indent=1, default=str, allow_nan=False),
    )
    replace_text(run_dir / "report.html", render_page(data, summary))
    return summary


def render_page(data: ReportInput, summary: dict[str, Any]) -> str:
    """The page as HTML text; every value is escaped."""
    samples = list(zip(data.before, data.after, strict=False))[:SAMPLES_MAX]
    return render_template(
        TEMPLATE,
        data=data,
        summary=summary,
        tiles=headlines(summary["evaluations"]),
        plots=[(plot, render_svg(plot)) for plot in plan_plots(data)],
        samples=samples,
        answers=[] if data.trains else list(data.after),
        right=[sum(map(is_right, side)) for side in zip(*samples, strict=True)],
        meanings=DISPOSITIONS,
        digest_shown=DIGEST_SHOWN,
        spec=json.dumps(data.spec, indent=2, default=str),
    )


def render_template(template: Path, **values: Any) -> str:
    """A page of this folder with its style inline; every other value is escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number=_number,
        percent=_percent,
        share=_share,
        duration=_duration,
        version=_version,
        right=is_right,
    )
    style = STYLE.read_text(encoding="utf-8")
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        style=style, **values
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _share(low: float, high: float) -> str:
    """An interval of shares: ``11.2 to 46.9 %``."""
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _version(sample: dict[str, Any]) -> str:
    """The step whose policy answered."""
    return ", ".join(map(str, sample["versions"] or "-"))
