"""``rollout verify-resume``: the calls on a service's model made again, and each chain value compared."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout.cli.book.finding import BaseOption, ServiceOption, find_model, require_base
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line


def verify_resume(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of a training service: its id, or the beginning of it.", metavar="MODEL"
        ),
    ],
    *,
    first: Annotated[
        int,
        typer.Option(
            "--from",
            min=1,
            help="Begin with the model as it was kept before this call, where it was; else with its first call.",
        ),
    ] = 1,
    service: ServiceOption = None,
    base: BaseOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Make the calls of a service's model again from its book and compare the chain behind each; exit code 1 where one differs.

    Nothing is written, and the service may run meanwhile. Of runs: rollout snapshot verify-resume.
    """
    from dataclasses import asdict

    from rollout.service.reading.checking import check_model

    with find_model(model, service) as opened:
        found = check_model(opened, require_base(opened, base), first)
    equal = found.differs is None
    if output is OutputFormat.json:
        said = {"model": opened.model.id, "equal": equal, "from_call": found.after + 1}
        print_json({**said, **asdict(found)})
        raise typer.Exit(0 if equal else 1)
    print_line(
        f"calls {found.after + 1} to {found.done} of {opened.model.id} made again:"
        f" each chain value is the book's, the last is {found.chain}"
        if found.done > found.after
        else f"no answered call of {opened.model.id} behind call {found.after} was made again"
    )
    if found.waiting and equal:
        print_line(f"call {found.done + 1} is not answered yet, and was not compared")
    if found.differs is not None:
        what = f"call {found.differs.call}" if found.differs.call else "the model's creation"
        print_line(f"{what} DIFFERS: {found.differs.why}")
        print_line(f"  book        {found.differs.chain or '-'}")
        print_line(f"  again       {found.differs.again or '-'}")
    raise typer.Exit(0 if equal else 1)
