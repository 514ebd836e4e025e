"""``rollout plan``: resolve everything, do the arithmetic, write ``plan.lock``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.output import (
    FileOption,
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
    print_table,
)

if TYPE_CHECKING:
    from rollout.runs.plan import Plan, PlannedRun

MIB, GIB = 1024**2, 1024**3


def plan(
    file: FileOption,
    *,
    lock: Annotated[
        Path | None, typer.Option("--lock", "-o", help="Write the plan to this file (plan.lock).")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Look nothing up; mark what stays unresolved.")
    ] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a field.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show the defaults, too, that filled what was left out.")
    ] = False,
    card: Annotated[
        str | None,
        typer.Option(
            "--card",
            help="Plan as if this machine had accelerators of so much memory (80Gi), none with 0; unset: as it has.",
        ),
    ] = None,
    cards: Annotated[int, typer.Option("--cards", min=1, max=64, help="How many of them.")] = 1,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Resolve presets, model and data; print batch and memory arithmetic; start nothing."""
    from rollout.runs.manifest import load_folder_or_file
    from rollout.runs.plan import build_plan, write_plan
    from rollout.runs.validation import apply_overrides, require_valid

    documents = [apply_overrides(document, set_ or []) for document in load_folder_or_file(file)]
    require_valid(documents)
    made = build_plan(documents, offline=offline, devices=_stated(card, cards))
    print_plan(made, output, every=every)
    if lock is not None:
        write_plan(made, lock)
        print_note(f"wrote {lock}; run it with: rollout run --plan {lock}")


def _stated(card: str | None, cards: int) -> tuple[int, ...] | None:
    """Bytes of the accelerators that were asked for; None where none were."""
    from rollout.common.quantities import parse_quantity

    if card is None:
        return None
    size = parse_quantity(card)
    return (size,) * cards if size else ()


def print_plan(plan: Plan, output: OutputFormat, *, every: bool = False) -> None:
    """Print a plan for people (``every``: with all defaults), or the content of its lock file."""
    from rollout.runs.plan import render_plan

    if output is OutputFormat.json:
        print_json(json.loads(render_plan(plan)))
        return
    for run in plan.runs:
        _print_run(run, every=every)


def _print_run(run: PlannedRun, *, every: bool) -> None:
    from rollout_api.v1alpha1.run import RolloutRunSpec

    spec = RolloutRunSpec.model_validate(run.spec)
    what = spec.train.algorithm.chosen if spec.train else spec.chosen
    print_line(f"{run.name}: {what} on {spec.model.uri or 'the result of another run'}")
    print_line(f"  engine {run.engine}, numerics {spec.numerics.mode}, grade {run.grade}")
    if run.exact_costs:
        print_line(f"  Exact: {run.exact_costs}")
    if run.weights:
        print_line(f"  weights: {run.weights}")
    _section("Chosen in the manifest", list(_leaves(run.manifest.get("spec") or {})))
    title = "Batch" if spec.serve is None else "Service"
    _section(title, [(key, value) for key, value in run.arithmetic.items() if value is not None])
    for role, parts in run.memory.items():
        rows = [(name, f"{size / MIB:,.1f} MiB") for name, size in parts.items() if size]
        _section(f"Memory per device, {role}", rows)
    _print_devices(run.devices)
    known = {key: value for key, value in run.resolved.items() if value is not None}
    _section("Resolved", [(key, _short(value)) for key, value in known.items()])
    _print_filled(run.filled, every=every)
    if run.unresolved:
        rows = [(one.field, f"{one.value}: {one.reason}") for one in run.unresolved]
        _section("UNRESOLVED", rows)
    for warning in run.warnings:
        print_note(f"warning: {warning}")
    print_line()


def _print_devices(devices: Mapping[str, Any]) -> None:
    """What each accelerator is asked to hold, and how long a sequence may become."""
    if not devices:
        return
    longest = [
        ("longest sequence", f"{devices['longestSequence']:,} tokens"),
        ("with activationCheckpointing", f"{devices['longestSequenceRecomputing']:,} tokens"),
    ]
    rows = [(f"device {load['device']}", _load(load)) for load in devices["loads"]]
    _section("Accelerators", [*rows, *longest])


def _load(load: Mapping[str, Any]) -> str:
    held = ", ".join(f"{role} {size / GIB:.1f}" for role, size in load["held"])
    return f"{held or 'nothing'} of {load['memory'] / GIB:.1f} GiB"


def _print_filled(filled: Sequence[Mapping[str, Any]], *, every: bool) -> None:
    """What presets gave; of the defaults their number, which is what a person needs to know of most."""
    from rollout_api.presets import DEFAULTS

    for source in dict.fromkeys(one["from"] for one in filled):
        rows = [(one["field"], one["value"]) for one in filled if one["from"] == source]
        if every or source != DEFAULTS:
            _section(f"Filled in by {source}", rows)
        else:
            print_line()
            print_line(
                f"  {len(rows)} other fields have their defaults ({source}); --all shows them"
            )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, object]]:
    """Each value of a document with its path, as it was written."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, _short(value)


def _section(title: str, rows: Sequence[tuple[str, object]]) -> None:
    if not rows:
        return
    print_line()
    print_table([f"  {title}", ""], [(f"    {key}", str(value)) for key, value in rows])


def _short(value: object) -> str:
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 90 else text[:87] + "..."
