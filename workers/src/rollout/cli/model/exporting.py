"""``rollout model export``: a run's weights as a folder that transformers, vLLM and PEFT load."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.model.printing import lineage_json, print_lineage
from rollout.cli.outcomes import print_fact
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_note
from rollout.cli.runs import RunArgument, find
from rollout.errors import SpecError

if TYPE_CHECKING:
    from rollout.runs.export.export import Export, Exported

SHARD = "5G"


class NumberFormat(StrEnum):
    """How weights are written."""

    float32 = "Float32"
    bfloat16 = "BFloat16"


def export(
    run: RunArgument,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="A folder, s3://bucket/prefix or gs://bucket/prefix: a whole model or none.",
            metavar="DIR|s3://...|gs://...",
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="The weights after this step; default: the newest."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The weights that the selecting evaluation chose.")
    ] = False,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Of a run with an adapter: base and adapter as one model."),
    ] = False,
    dtype: Annotated[
        NumberFormat | None, typer.Option("--dtype", help="Number format; default: as trained.")
    ] = None,
    max_shard_size: Annotated[
        str, typer.Option("--max-shard-size", help="Bytes in one file of weights, such as 500M.")
    ] = SHARD,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", help="The bucket's server; default: the cloud's."),
    ] = None,
    region: Annotated[str | None, typer.Option("--region", help="The bucket's region.")] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Write a run's weights to a folder that transformers, vLLM and PEFT load."""
    from rollout.runs.export.choose import Wanted
    from rollout.runs.export.export import Export

    if best and step is not None:
        raise SpecError("--best and --step name two versions: give one of them")
    wanted = Export(
        wanted=Wanted(step=step, best=best),
        merge=merge,
        dtype=None if dtype is None else dtype.value,
        shard_bytes=_shard_bytes(max_shard_size),
    )
    _print(_write(find(run), to, wanted, endpoint=endpoint, region=region), output)


def _write(
    run: Path, to: str, wanted: Export, *, endpoint: str | None, region: str | None
) -> Exported:
    from rollout.objects.bucket_files import is_bucket_place, open_bucket_files

    if is_bucket_place(to):
        from rollout.runs.export.upload import export_to_bucket

        files = open_bucket_files(to, endpoint=endpoint, region=region)
        return export_to_bucket(run, files, wanted)
    if endpoint or region:
        raise SpecError(f"--endpoint and --region are of a bucket, and --to {to} is a folder")
    from rollout.runs.export.export import export_model

    return export_model(run, Path(to).absolute(), wanted)


def _shard_bytes(text: str) -> int:
    from rollout.common.quantities import parse_quantity

    size = parse_quantity(text)
    if size < 1:
        raise SpecError(f"--max-shard-size {text}: expected a positive size, such as {SHARD}")
    return size


def _print(exported: Exported, output: OutputFormat) -> None:
    lineage = exported.lineage
    if lineage.step != exported.last_step:
        print_note(f"these are the weights of step {lineage.step} of {exported.last_step}")
    if output is OutputFormat.json:
        written = {"folder": str(exported.folder), "was_there": exported.was_there}
        print_json({**written, **lineage_json(lineage)})
        return
    print_line("was there already, and is whole" if exported.was_there else "exported")
    print_fact("folder", str(exported.folder))
    print_lineage(lineage)
