"""``rollout debug page``: a page of the console as data."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout.cli.output import print_json
from rollout.cli.runs import RunArgument, find


def page(
    run: RunArgument,
    name: Annotated[
        str,
        typer.Argument(
            help="steps, step, samples, sample, tokens, curves, evaluations or report.",
            metavar="PAGE",
        ),
    ],
    *,
    question: Annotated[
        str, typer.Option("--question", help='Which one, as JSON: {"step": 3} of step.')
    ] = "{}",
) -> None:
    """A page of `rollout ui` as JSON: what the console of a cluster asks a run's coordinator."""
    from rollout.console.views.remote import read_page_as_data

    print_json(read_page_as_data(find(run), name, question))
