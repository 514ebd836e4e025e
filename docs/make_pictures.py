"""Rewrites the pictures of README and tutorial from real runs: ``make docs``.

Runs the tutorial's manifest and the main job into a temporary folder. The report's page is photographed
where a Chromium is at hand; elsewhere the picture in the repository is left as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import rollout
from rollout.library import Run
from rollout.report.gather import gather
from rollout.report.panels import plan_plots
from rollout.report.plots import Plot, Series, render_svg

DOCS = Path(__file__).parent
PICTURES = DOCS / "tutorial" / "pictures"
FIRST = DOCS / "tutorial" / "first.yaml"
MAIN_JOB = DOCS.parent / "manifests" / "samples" / "addition-sft-grpo.yaml"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGE_PIXELS = "1180,1500"
BYTES_MAX = 300_000
NAMES = {
    "Evaluation": "first-evaluation.svg",
    "Reward": "first-reward.svg",
    "Utilisation of the learner": "first-utilisation.svg",
}


def main() -> None:
    """Make every picture, or say which could not be made."""
    with tempfile.TemporaryDirectory(prefix="rollout-pictures-") as home:
        os.environ["ROLLOUT_HOME"] = home
        first = rollout.run(FIRST)
        draw_first(first)
        photograph(first.report(), PICTURES / "report.png")
        rollout.run(MAIN_JOB)
        runs = [Run(path=path) for path in sorted(Path(home).iterdir(), key=started_at)]
        write_svg("accuracy.svg", plan_main_job([run for run in runs if run.path != first.path]))
    for path in sorted(PICTURES.iterdir()):
        size = path.stat().st_size
        assert size <= BYTES_MAX, f"{path}: {size} bytes, at most {BYTES_MAX}"


def started_at(path: Path) -> float:
    """When a run began, by its token, which is written first and never again."""
    return (path / "token").stat().st_mtime


def draw_first(run: Run) -> None:
    """The plots of the tutorial's run that the tutorial shows."""
    for plot in plan_plots(gather(run.path)):
        if plot.title in NAMES:
            write_svg(NAMES[plot.title], plot)


def plan_main_job(runs: Sequence[Run]) -> Plot:
    """Held-out accuracy over the steps of those runs of a pipeline that measure it."""
    series, start = [], 0
    for run in runs:
        data = gather(run.path)
        rows = [
            row
            for row in sorted(data.evaluations, key=lambda row: row["step"])
            if (row["split"], row["metric"]) == ("report", "accuracy")
        ]
        if rows:
            series.append(
                Series(
                    label=data.algorithm,
                    xs=[start + row["step"] for row in rows],
                    ys=[row["value"] for row in rows],
                    low=[row["low"] for row in rows],
                    high=[row["high"] for row in rows],
                    markers=True,
                )
            )
            start += len(data.steps)
    names = ", then ".join(one.label for one in series)
    return Plot(
        title=f"Held-out two-digit sums answered right, during {names}",
        unit="share, 95 % interval",
        series=series,
        bounds=(0, 1.02),
    )


def write_svg(name: str, plot: Plot) -> None:
    """A picture on white ground, so that it can be read on a dark page too."""
    svg = render_svg(plot, width=7.0, height=3.2)
    end = svg.index(">", svg.index("<svg")) + 1
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    text = f"{svg[:end]}\n {ground}{svg[end:]}"
    lines = (line.rstrip() for line in text.splitlines())
    (PICTURES / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def photograph(page: Path, target: Path) -> None:
    """The top of a report's page, with a browser that may not use the network."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.stderr.write(f"no {', '.join(BROWSERS)} here: {target.name} is left as it is\n")
        return
    with tempfile.TemporaryDirectory(prefix="rollout-browser-") as profile:
        options = (
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--hide-scrollbars", f"--user-data-dir={profile}", f"--window-size={PAGE_PIXELS}"),
        )
        subprocess.run(
            [browser, *options, f"--screenshot={target}", page.as_uri()],
            check=True,
            capture_output=True,
            timeout=120,
        )


if __name__ == "__main__":
    main()
