"""``rollout schema``: the JSON Schema and the CRDs, as generated from the models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from rollout.cli.output import print_line


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
    from rollout_api.generate import editor
    from rollout_api.generate.crd import build_crd, to_yaml
    from rollout_api.generate.tree import build_tree
    from rollout_api.v1alpha1.objects.kinds import KINDS

    found = {known.name.lower(): known for known in KINDS}.get(kind.lower())
    if found is None:
        names = ", ".join(known.name for known in KINDS)
        raise SpecError(f"no kind {kind!r}; there are: {names}")
    if what is What.crd:
        text = to_yaml(build_crd(found))
    else:
        text = editor.to_json(editor.build_schema(build_tree(found.model), title=found.name))
    print_line(text.rstrip("\n"))
