"""``rollout schema``: the JSON Schema and the CRDs, as generated from the models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from rollout.cli.output import print_json, print_line


class What(StrEnum):
    """What to print."""

    json = "json"
    crd = "crd"


def schema(
    kind: Annotated[str, typer.Argument(help="A kind, such as RolloutRun.")] = "RolloutRun",
    what: Annotated[
        What, typer.Option("--format", help="json: for editors. crd: for kubectl apply.")
    ] = What.json,
) -> None:
    """Print the schema of a kind."""
    from rollout.errors import SpecError
    from rollout_api import generate

    try:
        text = generate.crd_yaml(kind) if what is What.crd else generate.json_schema(kind)
    except KeyError as error:
        raise SpecError(f"no kind {kind!r}; there are: {', '.join(generate.kinds())}") from error
    if isinstance(text, str):
        print_line(text.rstrip("\n"))
    else:
        print_json(text)
