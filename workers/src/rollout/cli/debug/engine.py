"""``rollout debug rollout-only`` and ``profile``: sampling without training, and where time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
    print_table,
)
from rollout.cli.runs import RunArgument, find


def rollout_only(
    run: RunArgument,
    step: Annotated[int, typer.Option("--step", min=1, help="The step whose batch to sample.")],
    *,
    groups: Annotated[
        int | None, typer.Option("--groups", min=1, help="Only the first so many groups.")
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Sample a step's batch again with its recorded seeds, without training, and compare the tokens."""
    from rollout.debug.sampling import sample_again

    found = sample_again(find(run), step, groups_max=groups)
    if output is OutputFormat.json:
        print_json(found)
    else:
        keys = ("ordinal", "sample", "equal", "logprob_gap", "reward", "completion")
        headings = [key.upper().replace("_", " ") for key in keys]
        differs = not found["equal"]
        print_table(
            [*headings, "RECORDED"] if differs else headings,
            [
                [*(line[key] for key in keys), *([line["recorded"]] if differs else [])]
                for line in found["samples"]
            ],
        )
        print_line(_judge(found))
    for one in found["versions"]:
        if one["replayed"]:
            print_note(
                f"version {one['step']} is not kept any more: its weights were made by replay"
            )
    raise typer.Exit(1 if found["exact"] and not found["equal"] else 0)


def _judge(found: dict[str, Any]) -> str:
    lines = found["samples"]
    num_equal = sum(line["equal"] for line in lines)
    if found["exact"]:
        if found["equal"]:
            return f"Exact: all {len(lines)} completions are the recorded ones, token for token"
        return f"Exact, but {len(lines) - num_equal} of {len(lines)} completions DIFFER"
    return (
        f"Fast promises no equality: {num_equal} of {len(lines)} completions are the recorded ones"
    )


def profile(
    run: RunArgument,
    *,
    after: Annotated[
        int, typer.Option("--from", min=0, help="Measure the steps after this one.")
    ] = 1,
    steps: Annotated[int, typer.Option("--steps", min=1, max=100, help="At most so many.")] = 3,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="The trace's file; default: <run>-trace.json, here."),
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Take recorded steps again under torch's profiler: phases, operators, and a Chrome trace."""
    from rollout.debug.profile import profile_steps

    folder = find(run)
    where = trace or Path(f"{folder.name}-trace.json")
    found = profile_steps(folder, after=after, num_steps=steps, trace=where)
    if output is OutputFormat.json:
        print_json(found)
        return
    print_table(
        ["PHASE", "SECONDS", "SHARE"],
        [[one["phase"], one["seconds"], _percent(one["share"])] for one in found["phases"]],
    )
    print_line()
    print_table(
        ["OPERATOR", "CALLS", "SECONDS", "SHARE"],
        [
            [one["operator"], one["calls"], one["seconds"], _percent(one["share"])]
            for one in found["operators"]
        ],
    )
    first, last = found["steps"][0], found["steps"][-1]
    print_line(f"steps {first} to {last}, profiler included; trace for ui.perfetto.dev: {where}")


def _percent(share: float) -> str:
    return f"{100 * share:5.1f} %"
