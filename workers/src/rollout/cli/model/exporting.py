"""``rollout model export``: weights of a run, a snapshot, or a training service's model, as a folder that transformers, vLLM and PEFT load."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.book.finding import BaseOption, ServiceOption, find_either, require_base
from rollout.cli.model.printing import lineage_json, print_lineage
from rollout.cli.outcomes import print_fact
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_note
from rollout.cli.runs import RunOrModelArgument
from rollout.cli.snapshot.options import ObjectPathOption
from rollout.errors import SpecError

if TYPE_CHECKING:
    from rollout.runs.export.choose import SnapshotWeights
    from rollout.runs.export.export import Export, Exported
    from rollout.service.reading.finding import OpenedModel

SHARD = "5G"


class NumberFormat(StrEnum):
    """How weights are written."""

    float32 = "Float32"
    bfloat16 = "BFloat16"


ToOption = Annotated[
    str,
    typer.Option(
        "--to",
        help="A folder, s3://bucket/prefix or gs://bucket/prefix: a whole model or none.",
        metavar="DIR|s3://...|gs://...",
    ),
]
StepOption = Annotated[
    int | None,
    typer.Option(
        "--step", min=0, help="Of a run: the weights after this step; default: the newest."
    ),
]
BestOption = Annotated[
    bool, typer.Option("--best", help="The weights that the selecting evaluation chose.")
]
MergeOption = Annotated[
    bool,
    typer.Option(
        "--merge",
        help="With an adapter: base and adapter as one model; of a service's model the saved weights.",
    ),
]
DtypeOption = Annotated[
    NumberFormat | None, typer.Option("--dtype", help="Number format; default: as trained.")
]
ShardOption = Annotated[
    str, typer.Option("--max-shard-size", help="Bytes in one file of weights, such as 500M.")
]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", help="The bucket's server; default: the cloud's.")
]
RegionOption = Annotated[str | None, typer.Option("--region", help="The bucket's region.")]
SavedOption = Annotated[
    str | None,
    typer.Option(
        "--saved",
        help="Of a service's model: the name that it was saved under; default: the newest.",
    ),
]


def export(
    run: RunOrModelArgument,
    *,
    to: ToOption,
    step: StepOption = None,
    best: BestOption = False,
    merge: MergeOption = False,
    dtype: DtypeOption = None,
    max_shard_size: ShardOption = SHARD,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    saved: SavedOption = None,
    service: ServiceOption = None,
    base: BaseOption = None,
    object_path: ObjectPathOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Write weights to a folder that transformers, vLLM and PEFT load: a run's, a snapshot's, or what a service's model was saved as."""
    from rollout.runs.export.choose import VersionSelector
    from rollout.runs.export.export import Export
    from rollout.runs.export.of_snapshot import is_snapshot

    if best and step is not None:
        raise SpecError("--best and --step name two versions: give one of them")
    if is_snapshot(run):
        _require_one_step(best=best, step=step is not None, service=service is not None)
        found, selector = _find_in_snapshot(run, object_path)
    elif object_path is not None:
        raise SpecError(f"--object-path is of a snapshot, which is named by its id, not by {run}")
    else:
        found, selector = find_either(run, service), VersionSelector(step=step, best=best)
    if not isinstance(found, Path):
        if best or step is not None or endpoint or region:
            raise SpecError(
                "--step, --best, --endpoint and --region are of runs: name with --saved what the model was saved as"
            )
        with found:
            written = _write_saved(
                found, to, saved=saved, merge=merge, dtype=dtype, shard=max_shard_size, base=base
            )
        _print(written, output)
        return
    if saved or base:
        raise SpecError("--saved and --base are of a training service's models: give a run --step")
    wanted = Export(
        selector=selector,
        merge=merge,
        dtype=None if dtype is None else dtype.value,
        shard_bytes=_shard_bytes(max_shard_size),
    )
    _print(_write(found, to, wanted, endpoint=endpoint, region=region), output)


def _require_one_step(**given: bool) -> None:
    """Raise SpecError for options that choose among a run's versions."""
    if chosen := [f"--{name}" for name, is_given in given.items() if is_given]:
        raise SpecError(f"{', '.join(chosen)}: a snapshot is of one step of one run; leave it out")


def _find_in_snapshot(snapshot: str, object_path: str | None) -> tuple[Path, SnapshotWeights]:
    from rollout.runs.export.of_snapshot import find_weights
    from rollout.runs.snapshots.places import WhereToLook

    return find_weights(snapshot, WhereToLook(object_path=object_path))


def _write_saved(
    opened: OpenedModel,
    to: str,
    *,
    saved: str | None,
    merge: bool,
    dtype: NumberFormat | None,
    shard: str,
    base: str | None,
) -> Exported:
    """With ``merge``, and of a model whose weights are all trained, the saved weights; else the state's adapter."""
    from rollout.models.resolve import resolve_model
    from rollout.objects.bucket_files import is_bucket_place
    from rollout.serving.saved_weights import SavedExport, export_saved

    if is_bucket_place(to):
        raise SpecError(f"--to {to}: what a service's model was saved as goes to folders only")
    export = SavedExport(
        name=saved,
        adapter=opened.model.adapter is not None and not merge,
        dtype="Float32" if dtype is None else dtype.value,
        shard_bytes=_shard_bytes(shard),
    )
    place = resolve_model(require_base(opened, base), offline=True).path
    return export_saved(opened, place, Path(to).absolute(), export)


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
