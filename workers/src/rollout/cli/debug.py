"""``rollout debug``: the learner under the microscope, on what a run has recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout.cli.output import Format, OutputOption, cell, print_json, print_line, print_table
from rollout.cli.runs import RunArgument, find

app = typer.Typer(help="Replay recorded batches through the learner.", no_args_is_help=True)


@app.command("train-only")
def train_only(
    run: RunArgument,
    *,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Replay at most so many.")
    ] = 1_000_000,
    output: OutputOption = Format.text,
) -> None:
    """Train again on a run's recorded batches, without actors, and compare every digest."""
    from rollout.learner.replay import replay_recorded

    rows = list(replay_recorded(find(run), steps_max=steps))
    equal = all(row["equal"] for row in rows)
    if output is Format.json:
        print_json({"equal": equal, "steps": rows})
    else:
        headings = ["STEP", "LOSS", "GRAD NORM", "EQUAL", "CHAIN"]
        keys = ("step", "loss", "gradient_norm", "equal", "chain")
        print_table(headings, [[row.get(key) for key in keys] for row in rows])
        print_line("every step met its recorded digest" if equal else "digests DIFFER")
    raise typer.Exit(0 if equal else 1)


@app.command("one-batch")
def one_batch(
    run: RunArgument,
    step: Annotated[int, typer.Option("--step", min=1, help="The step whose batch to take.")],
    output: OutputOption = Format.text,
) -> None:
    """One recorded batch, sample by sample: advantages, ratios, logprob gaps, gradients by parameter."""
    from rollout.learner.inspect import inspect_batch

    found = inspect_batch(find(run), step)
    if output is Format.json:
        print_json(found)
        return
    keys = ("place", "reward", "advantage", "ratio_max", "mismatch_max", "entropy", "num_tokens")
    print_table(
        [key.upper().replace("_", " ") for key in (*keys, "completion")],
        [[*(row.get(key) for key in keys), row["completion"]] for row in found["samples"]],
    )
    print_line()
    print_table(
        ["PARAMETER", "GRADIENT NORM", "WEIGHT NORM"],
        [[row["name"], row["gradient_norm"], row["weight_norm"]] for row in found["parameters"]],
    )
    print_line()
    for name, value in found["metrics"].items():
        print_line(f"  {name:<28} {cell(value) if not isinstance(value, dict) else value}")
