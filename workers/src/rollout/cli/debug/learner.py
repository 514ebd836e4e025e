"""``rollout debug``: the learner under the microscope, on what a run has recorded."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    cell,
    print_json,
    print_line,
    print_note,
    print_table,
)
from rollout.cli.runs import RunArgument, find

app = typer.Typer(
    help="What a run did, taken again or laid open: its batches, samples, evidence, and what holds it up.",
    no_args_is_help=True,
)

NAMED_MAX = 10
"""Tensors named in text; ``--output json`` has all."""


@app.command("train-only")
def train_only(
    run: RunArgument,
    *,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Replay at most so many.")
    ] = 1_000_000,
    after: Annotated[
        int,
        typer.Option(
            "--from", min=0, help="Begin at the newest anchor at or before this step; 0: the model."
        ),
    ] = 0,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Train again on a run's recorded batches, without actors, and compare every digest."""
    from rollout.debug.replay import replay_recorded

    lines = list(replay_recorded(find(run), after=after, steps_max=steps))
    equal = all(line["equal"] for line in lines)
    if output is OutputFormat.json:
        print_json({"equal": equal, "steps": lines})
    else:
        headings = ["STEP", "LOSS", "GRAD NORM", "EQUAL", "CHAIN"]
        keys = ("step", "loss", "gradient_norm", "equal")
        print_table(
            headings, [[*(line[key] for key in keys), line["chain"][7:19]] for line in lines]
        )
        print_line(_judge(lines))
    if not equal and lines[0]["runtime_changes"]:
        print_note(f"the run was computed elsewhere: {lines[0]['runtime_changes']}")
    raise typer.Exit(0 if equal else 1)


def _judge(lines: list[dict[str, Any]]) -> str:
    first = next((line for line in lines if not line["equal"]), None)
    if first is None:
        return "every step met its recorded digest"
    what = [name for name in ("weights", "chain") if not first[f"{name}_equal"]]
    where = "where the replay begins" if first is lines[0] else "the first step that does"
    return f"digests DIFFER from step {first['step']} on ({where}): {' and '.join(what)}"


@app.command("one-batch")
def one_batch(
    run: RunArgument,
    step: Annotated[
        int,
        typer.Option(
            "--step", min=1, help="The step whose batch to take; also the one that failed."
        ),
    ],
    output: OutputOption = OutputFormat.text,
) -> None:
    """One recorded batch, sample by sample: advantages, ratios, logprob gaps, gradients by parameter."""
    from rollout.debug.one_batch import inspect_batch

    found = inspect_batch(find(run), step)
    if output is OutputFormat.json:
        print_json(found)
        return
    keys = ("place", "reward", "advantage", "ratio_max", "mismatch_max", "entropy", "num_tokens")
    print_table(
        [key.upper().replace("_", " ") for key in (*keys, "completion")],
        [[*(line[key] for key in keys), line["completion"]] for line in found["samples"]],
    )
    print_line()
    print_table(
        ["PARAMETER", "GRADIENT NORM", "WEIGHT NORM"],
        [
            [line["name"], line["gradient_norm"], line["weight_norm"]]
            for line in found["parameters"]
        ],
    )
    print_line()
    for name, value in found["metrics"].items():
        print_line(f"  {name:<28} {cell(value) if not isinstance(value, dict) else value}")
    _warn(found)


def _warn(found: dict[str, Any]) -> None:
    if not found["state_equal"]:
        print_note("the state before this step is not the one that was committed: see train-only")
    names = found["not_finite"]
    if names:
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        print_note(f"not finite: {', '.join(names[:NAMED_MAX])}{more}")
