"""What asynchrony costs in accuracy: equal samples, learned from as they come or up to ``maxStaleness`` steps late.

Five seeds of two-digit addition, each from its own warm-started model; the sums measured are held out. A
long job (an hour of two cores), so a target of its own. ``ROLLOUT_BENCH_KEEP`` names a folder for the runs: those
that are there already are not run again.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from figures import RESAMPLES, Figure, level
from real_run import run_to_end, write_manifest

from rollout.ledger.sqlite.reader import LedgerReader
from rollout.runs.manifest import load_documents
from rollout.runs.run_dir import RunDir

MANIFEST = Path(__file__).parents[2] / "manifests" / "samples" / "addition-sft-grpo.yaml"
SEEDS = range(5)
STALENESS = (1, 2, 4)
STEPS = 250
INFERIOR_MAX = -0.03
"""How much less accurate asynchronous learning may be."""


def measure() -> Iterator[Figure]:
    """Accuracy of the synchronous runs, then what each staleness adds to it, seed by seed."""
    with tempfile.TemporaryDirectory(prefix="rollout-bench-asynchrony-") as name:
        folder = Path(os.environ.get("ROLLOUT_BENCH_KEEP") or name)
        folder.mkdir(parents=True, exist_ok=True)
        ends: dict[int, list[float]] = {staleness: [] for staleness in (0, *STALENESS)}
        ages: dict[int, list[float]] = {staleness: [] for staleness in STALENESS}
        for seed in SEEDS:
            for staleness, found in ends.items():
                run = _run(folder, seed, staleness)
                found.append(_accuracy(run))
                if staleness:
                    ages[staleness].append(_mean_age(run))
                sys.stderr.write(f"seed {seed} staleness {staleness}: {found[-1]:.4f}\n")
    yield level("accuracy, synchronous", ends[0], "", "info")
    for staleness in STALENESS:
        gained = [late - now for late, now in zip(ends[staleness], ends[0], strict=True)]
        yield _mean(f"accuracy gained, staleness {staleness}", gained, f">= {INFERIOR_MAX}")
        yield level(f"mean age, staleness {staleness}", ages[staleness], "steps", "info")


def _mean(name: str, values: list[float], bar: str) -> Figure:
    """The mean over seeds, with its 95 % bootstrap interval."""
    draw = random.Random(7)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Figure(
        name=name,
        value=statistics.fmean(values),
        unit="",
        bar=bar,
        low=means[int(0.025 * RESAMPLES)],
        high=means[int(0.975 * RESAMPLES) - 1],
        samples={"values": values},
    )


def _run(folder: Path, seed: int, staleness: int) -> RunDir:
    name = f"seed-{seed}-staleness-{staleness}"
    run = RunDir(path=folder / name)
    if (run.path / "result.json").exists():
        return run
    manifest = write_manifest(folder / f"{name}.json", _manifest(seed, staleness))
    return run_to_end(manifest, run.path)


def _manifest(seed: int, staleness: int) -> Mapping[str, Any]:
    """The sample's second stage on the model that it warm-starts from, without its selection."""
    spec = dict(load_documents(MANIFEST)[1].data["spec"])
    train = {**spec["train"], "maxSteps": STEPS, "maxStaleness": staleness}
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "asynchrony"},
        "spec": {
            **spec,
            "seed": seed,
            "numerics": {"mode": "Fast"},
            "model": {"uri": f"rollout://tiny-adder?seed={seed}"},
            "train": train,
            "evaluations": [{"suite": {"builtin": {"name": "arithmetic"}}, "atStart": True}],
        },
    }


def _accuracy(run: RunDir) -> float:
    """Of the last version on the held-out sums."""
    with LedgerReader(run.ledger) as reader:
        found = max(reader.evaluations(), key=lambda one: (one.step, one.split))
        steps = [one for one in reader.evaluations() if one.step == found.step]
    values = {one.split: one.summary["accuracy"]["value"] for one in steps if one.summary}
    return float(values["report"])


def _mean_age(run: RunDir) -> float:
    """Steps between the version that a sample came from and the one that it changed."""
    with LedgerReader(run.ledger) as reader:
        ages = [
            view.step - 1 - min(span.step for span in sample.trajectory.spans)
            for view in reader.steps()[-50:]
            for sample in reader.samples(view.step)
        ]
    return sum(ages) / len(ages)
