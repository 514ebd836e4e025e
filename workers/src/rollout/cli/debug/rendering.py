"""``rollout debug render``: a trajectory token by token."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_table
from rollout.cli.runs import RunArgument, find


def render(
    run: RunArgument,
    step: Annotated[int, typer.Option("--step", min=1, help="The step that consumed it.")],
    *,
    place: Annotated[
        int, typer.Option("--place", min=0, help="Its place in the step's batch, from 0 on.")
    ] = 0,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show a trajectory's ids, masks, logprobs and text side by side: what was read, said and answered."""
    from rollout.debug.rendering import render_sample

    found = render_sample(find(run), step, place)
    if output is OutputFormat.json:
        print_json(found)
        return
    several = any(line.get("row") for line in found["tokens"])
    print_table(
        [
            *(["ROW"] if several else []),
            "PLACE",
            "ID",
            "FROM",
            "MASK",
            "LOGPROB",
            "VERSION",
            "TEXT",
        ],
        [
            [
                *([line["row"]] if several else []),
                number,
                line["id"],
                line["from"],
                line["mask"],
                "" if line["logprob"] is None else f"{line['logprob']:.4f}",
                "" if line["version"] is None else line["version"],
                repr(line["text"])[1:-1],
            ]
            for number, line in enumerate(found["tokens"])
        ],
    )
    again = {True: "other tokens", False: "the same tokens", None: "not known"}
    print_line(
        f"ordinal {found['ordinal']}, sample {found['sample']}: reward {found['reward']:g}, ended as"
        f" {found['ending']}; its text, encoded again: {again[found['retokenised']]}"
    )
