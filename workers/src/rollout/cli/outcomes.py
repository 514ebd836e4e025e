"""What came of a run, for people: outcome, evaluations from first to last, the hash, where things lie, what to do next."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout.cli.output import cell, print_line

if TYPE_CHECKING:
    from rollout.report.data import ReportInput

LABEL_WIDTH = 12


def print_result(run_dir: Path, summary: Mapping[str, Any]) -> None:
    """What came of a run that has ended, for people: of one that answers rows, how many; else the whole of its end."""
    if (counts := summary.get("infer")) is not None:
        print_answers(summary, counts)
        return
    page = run_dir / "report.html"
    print_end(run_dir, page=page if page.exists() else None)


def print_end(folder: Path, *, page: Path | None) -> None:
    """What a person wants to know when a run has ended: nothing, where none had begun."""
    from rollout.errors import LedgerError
    from rollout.report.evidence import list_evidence
    from rollout.report.gather import gather

    try:
        data = gather(folder)
    except LedgerError:
        return  # it never began, and why was told
    print_outcome(data, is_told=sys.stdout.isatty() and sys.stderr.isatty())
    print_cost(folder)
    print_where(data, folder, page, num_evidence=len(list_evidence(folder)))


def print_where(
    data: ReportInput, folder: Path, page: Path | None, *, num_evidence: int = 0
) -> None:
    """Where things lie, and commands that can be pasted: what to look at first."""
    print_fact("folder", str(folder))
    if page is not None:
        print_fact("report", str(page))
    for command in _next(folder, data, num_evidence):
        print_fact("next", command)


def print_outcome(data: ReportInput, *, is_told: bool = False) -> None:
    """The lines of a run that are the same while it goes on, at its end and later.

    ``is_told``: why it failed stands on the same screen already.
    """
    from rollout.report.data import summarise

    summary = summarise(data)
    print_line(f"{data.name}: {data.algorithm} on {data.model}")
    reason = "why stands above" if is_told and data.outcome == "Failed" else data.reason
    print_fact("outcome", f"{data.outcome}{f' ({reason})' if reason else ''}")
    if data.trains:
        print_fact("steps", f"{len(data.steps)} in {data.wall_seconds:.1f} s")
    print_fact("grade", data.grade)
    window = summary["window"]
    ends = "step" if window == 1 else f"{window} steps"
    for name in ("reward", "loss"):
        first, last = summary[f"{name}_first"], summary[f"{name}_last"]
        if last is not None and len(data.steps) > 1:
            print_fact(name, f"{cell(first)} -> {cell(last)} (first and last {ends})")
        elif last is not None:
            print_fact(name, cell(last))
    for item in summary["evaluations"]:
        print_fact(f"{item['name']} {item['split']}", _evaluation(item))
    if data.trains:
        counts = ", ".join(f"{name} {count}" for name, count in data.dispositions.items())
        print_fact("samples", counts)
    _print_plugins(summary)
    if summary["removed"].get("step"):
        print_fact("not kept", describe_removed(summary["removed"]))
    print_fact("hash chain", data.chain or "none yet")


def print_cost(folder: Path) -> None:
    """What a run of this machine costs so far; nothing where nobody names a table of prices."""
    from rollout.costs.telling import describe_folder

    if (line := describe_folder(folder, os.environ)) is not None:
        print_fact("cost", line)


def _print_plugins(summary: Mapping[str, Any]) -> None:
    from rollout.codec import DIGEST_SHOWN

    for path, versions in summary["plugins"].items():
        for digest, count in versions.items():
            print_fact("plugin", f"{path} {digest[:DIGEST_SHOWN]}: {count} samples trained on")
    for note in summary["plugin_notes"]:
        print_fact("changed", note.removeprefix("plugins: "))


def describe_removed(removed: Mapping[str, int]) -> str:
    """What is no longer kept of a run's samples, and how much that was."""
    return (
        f"tokens and texts of steps up to {removed['step']}: {removed['bodies']} groups,"
        f" {removed['bytes'] / 1024**2:,.1f} MiB"
    )


def print_answers(summary: Mapping[str, Any], counts: Mapping[str, Any]) -> None:
    """What came of an inference run: its message names the files."""
    print_line(f"{summary['run']}: {summary['reason']}")
    print_fact("rows", f"{counts['num_done']} of {counts['num_rows']}")
    print_fact("failed", str(counts["num_failed"]))
    print_fact("tokens", str(counts["num_tokens"]))
    print_fact("says", str(summary["message"]))
    print_fact("folder", str(summary["run_dir"]))


def print_fact(label: str, text: str) -> None:
    """One line of it."""
    print_line(f"  {label:<{LABEL_WIDTH}} {text}")


def _evaluation(item: Mapping[str, Any]) -> str:
    first, last = (_with_interval(item[end]) for end in ("first", "last"))
    if item["first"]["step"] == item["last"]["step"]:
        return f"{item['metric']} {last}, {item['num_prompts']} prompts"
    return f"{item['metric']} {first} -> {last}"


def _with_interval(point: Mapping[str, Any]) -> str:
    return f"{point['value']:.3f} [{point['low']:.3f}, {point['high']:.3f}] (step {point['step']})"


def _next(folder: Path, data: ReportInput, num_evidence: int) -> Iterator[str]:
    import shlex

    run = shlex.quote(_short(folder))
    if data.outcome == "Failed" and num_evidence:
        yield f"rollout debug evidence {run}"
    elif data.outcome == "Failed":
        yield f"rollout logs tail {run}"
    if data.steps:
        yield f"rollout runs samples {run} --step {data.steps[-1]['step']}"
    if data.outcome == "Succeeded" and data.steps:
        yield f"rollout model export {run} --to {shlex.quote(data.name)}-model"
    if data.outcome == "Succeeded":
        what = "metrics" if data.trains else "answers"
        yield f"rollout runs export {run} --what {what} --output exported"


def _short(folder: Path) -> str:
    """The name where a command finds the run by it, else the path."""
    import os

    from rollout.runs.run_dir import runs_home

    return folder.name if folder.parent == runs_home(os.environ).absolute() else str(folder)
