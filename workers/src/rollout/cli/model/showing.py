"""``rollout model show``: what a model is, where it comes from, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.model.printing import lineage_json, print_lineage
from rollout.cli.outcomes import print_fact
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line
from rollout.cli.runs import find
from rollout.errors import ObjectDamaged

if TYPE_CHECKING:
    from rollout.runs.export.choose import StoredSteps
    from rollout.runs.export.show import Shown


def show(
    model: Annotated[
        str, typer.Argument(help="A model's folder, or a run as in `runs show`.", metavar="DIR|RUN")
    ],
    *,
    output: OutputOption = OutputFormat.text,
) -> None:
    """What a model is: architecture, numbers, shards, lineage, and whether each byte is as exported."""
    from rollout.runs.export.choose import list_stored
    from rollout.runs.export.show import is_model, show_model

    if is_model(Path(model)):
        _print_model(show_model(Path(model).absolute()), output)
    else:
        _print_run(list_stored(find(model)), output)


def _print_model(shown: Shown, output: OutputFormat) -> None:
    if output is OutputFormat.json:
        print_json(_json(shown))
    else:
        _print_lines(shown)
    if shown.damage:
        raise ObjectDamaged(
            f"{shown.folder} is not what was exported: {'; '.join(shown.damage[:3])}; export it again"
        )


def _json(shown: Shown) -> dict[str, Any]:
    names = (
        "architecture",
        "form",
        "num_parameters",
        "num_tensors",
        "size_bytes",
        "dtypes",
        "files",
    )
    lineage = None if shown.lineage is None else lineage_json(shown.lineage)
    checked = {"verified": shown.damage == (), "damage": list(shown.damage or ())}
    facts = {name: getattr(shown, name) for name in names}
    return {"folder": str(shown.folder), **facts, **checked, "lineage": lineage}


def _print_lines(shown: Shown) -> None:
    print_line(str(shown.folder))
    print_fact("architecture", shown.architecture)
    numbers = f"{shown.num_parameters:,} parameters in {', '.join(shown.dtypes)}"
    print_fact("form", f"{shown.form}, {numbers}")
    print_fact(
        "files", f"{len(shown.files)}, {shown.size_bytes:,} bytes, {shown.num_tensors} tensors"
    )
    if shown.lineage is None:
        print_fact("lineage", "none: not exported by rollout, so nothing to verify it against")
        return
    print_lineage(shown.lineage)
    damage = shown.damage or ()
    print_fact("verified", "every file is as it was exported" if not damage else "no")
    for one in damage:
        print_fact("damaged", one)


def _print_run(stored: StoredSteps, output: OutputFormat) -> None:
    if output is OutputFormat.json:
        print_json(
            {
                "run": stored.run,
                "from": stored.base,
                "algorithm": stored.algorithm,
                "form": stored.form,
                "dtype": stored.dtype,
                "step": stored.last_step,
                "steps_stored": list(stored.steps),
                "best": stored.best,
            }
        )
        return
    print_line(f"{stored.run}: {stored.algorithm}, {stored.form} in {stored.dtype}")
    print_fact("from", stored.base)
    print_fact("steps", f"{stored.last_step} committed")
    print_fact("stored", ", ".join(map(str, stored.steps)) or "none")
    print_fact("best", "none chosen" if stored.best is None else f"step {stored.best}")
