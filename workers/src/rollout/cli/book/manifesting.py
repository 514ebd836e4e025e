"""``rollout runs to-manifest``: the loop that a service recorded, as the manifest of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.book.finding import BaseOption, ServiceOption, find_model, require_base
from rollout.cli.outcomes import print_fact
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line
from rollout_api.visible import visible

if TYPE_CHECKING:
    from rollout.runs.manifest import Document
    from rollout.service.reading.finding import OpenedModel
    from rollout.service.reading.manifests.document import InferredManifest

RUN, ROWS, REWARD_FILE = "run.yaml", "rows.jsonl", "reward.py"


def to_manifest(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of a training service: its id, or the beginning of it.", metavar="MODEL"
        ),
    ],
    *,
    folder: Annotated[
        Path, typer.Option("--to", help="Folder for the manifest and its data; new or empty.")
    ],
    name: Annotated[str, typer.Option("--name", help="The run's name.")] = "from-service",
    service: ServiceOption = None,
    base: BaseOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Write a recorded loop as a manifest and its data, and say what it leaves out; a loop that no manifest says is refused, exit code 2."""
    from rollout.errors import SpecError, StoreError

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"--to {folder}: expected a new or an empty folder; name another")
    with find_model(model, service) as opened:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as work:
                found = _write(opened, require_base(opened, base), name, Path(work))
                folder.mkdir(exist_ok=True)
                # Beside them lies what Python made of the reward's file when the manifest was checked.
                for file in filter(Path.is_file, Path(work).iterdir()):
                    shutil.copyfile(file, folder / file.name)
        except OSError as error:
            raise StoreError(f"--to {folder}: cannot be written: {error}") from error
    if output is OutputFormat.json:
        facts = {"algorithm": found.algorithm, "steps": found.steps}
        print_json({"manifest": str(folder / RUN), **facts, "left_out": list(found.left_out)})
        return
    print_line(f"{folder / RUN}: {found.algorithm}, {found.steps} steps")
    for text in found.left_out:
        print_fact("left out", text)
    print_fact("next", f"rollout plan -f {folder / RUN}")


def _write(opened: OpenedModel, uri: str, name: str, work: Path) -> InferredManifest:
    """The files, and their manifest held against the rules of manifests. Raises SpecError."""
    from rollout.models.resolve import resolve_model
    from rollout.rendering.plain import build_plain_renderer
    from rollout.rendering.tokenizer import load_tokenizer
    from rollout.runs.manifest import load_documents
    from rollout.runs.validation import require_valid
    from rollout.service.reading.manifests.document import REWARD, infer_manifest

    renderer = build_plain_renderer(load_tokenizer(resolve_model(uri).path))
    with (work / ROWS).open("w", encoding="utf-8") as rows:

        def write(record: dict[str, str]) -> None:
            rows.write(json.dumps(record) + "\n")

        found = infer_manifest(opened, uri, name, renderer, write)
    if "rewards" in found.document["spec"]["train"]:
        (work / REWARD_FILE).write_text(REWARD, encoding="utf-8")
    (work / RUN).write_text(_render(opened, found), encoding="utf-8")
    documents = load_documents(work / RUN)
    require_valid(documents)
    refusal = _plan_refusal(documents)
    if refusal is not None:
        refusal = refusal.replace(f"{work}/", "")
        found = replace(found, left_out=(f"as it is, {refusal}", *found.left_out))
        (work / RUN).write_text(_render(opened, found), encoding="utf-8")
    return found


def _plan_refusal(documents: Sequence[Document]) -> str | None:
    """Why a plan of it is refused on this machine; None where it is not."""
    from rollout.errors import SpecError
    from rollout.runs.plan import build_plan

    try:
        build_plan(documents, offline=True)
    except SpecError as error:
        return " ".join(str(error).split())
    return None


def _render(opened: OpenedModel, found: InferredManifest) -> str:
    head = [
        f"From the calls of model {opened.model.id} of a training service. Left out:",
        *found.left_out,
    ]
    comments = "".join(f"# {visible(' '.join(line.split()))}\n" for line in head)
    return comments + _yaml(found.document)


def _yaml(document: dict[str, Any]) -> str:
    from io import StringIO

    from ruamel.yaml import YAML

    out = StringIO()
    YAML().dump(document, out)
    return out.getvalue()
