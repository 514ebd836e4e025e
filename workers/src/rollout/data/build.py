"""From the API's ``train.data`` to a source of rows, and to the order in which they are visited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rollout.data.cursor import DataOrder
from rollout.data.files import find_files
from rollout.data.hugging_face import (
    ArrowSource,
    DatasetName,
    StreamSource,
    open_dataset,
    open_stream,
)
from rollout.data.jsonl import JsonlSource, open_jsonl
from rollout.data.records import OnBadRecord
from rollout.data.rows.mapping import FieldMapping, Target
from rollout.data.subset import Part, SubsetSource, split_source
from rollout.errors import DataNotFound, SpecError
from rollout.models.files import default_cache_dir
from rollout.plugins.row_host import HostedSource
from rollout.seams import DataSource, EnvBuilder
from rollout_api.v1alpha1.data import Data, HuggingFace, Jsonl, PluginRows

if TYPE_CHECKING:
    from rollout.plugins.sidecar.kinds.data import ServedRows

OpenSource: TypeAlias = "JsonlSource | ArrowSource | StreamSource | ServedRows"


def build_source(
    data: Data | None,
    environment: EnvBuilder | None = None,
    *,
    part: Part = "train",
    seed: int = 0,
    base_dir: Path | None = None,
    target: Target = "none",
    folders: Sequence[Path] = (),
) -> DataSource:
    """The rows of one part of the run's data.

    An environment that brings its own rows comes first. ``part`` other than ``train`` needs
    ``evalFraction`` above 0. ``base_dir`` is where relative paths start (default: the working folder);
    ``target`` is what the algorithm learns from; a record without it is a bad one. ``folders`` are where plugins lie.
    Raises DataError for broken data, SpecError when nobody brings any.
    """
    own = environment.source(part, seed) if environment is not None else None
    if own is not None:
        return own
    if data is None:
        raise SpecError(
            "train.data is missing and the environment brings no rows of its own; add "
            "data: {jsonl: {uri: ...}} or an environment that has data, such as arithmetic"
        )
    opened = open_source(data, base_dir=base_dir, target=target, folders=folders)
    return split_data(opened, data, part)


def split_data(source: OpenSource, data: Data, part: Part) -> OpenSource | SubsetSource:
    """The rows of ``part``; everything is ``train`` when nothing is held out."""
    if data.eval_fraction > 0:
        if isinstance(source, StreamSource):
            raise SpecError("train.data: evalFraction needs streaming: false; name an eval split")
        return split_source(source, data.eval_fraction, part)
    if part != "train":
        raise SpecError(
            f"the {part} split is asked for, but train.data holds nothing out; set evalFraction, or "
            f"give the evaluation data of its own"
        )
    return source


def open_source(
    data: Data,
    *,
    base_dir: Path | None = None,
    target: Target = "none",
    folders: Sequence[Path] = (),
) -> OpenSource:
    """All rows that ``data`` names. Raises DataError, SpecError for a plugin that is not in ``folders``."""
    base_dir = base_dir or Path()
    if data.plugin is not None:
        mapping = _mapping(data.plugin, target=target)
        return _open_plugin(data.plugin, mapping, data.on_bad_record, folders)
    if data.jsonl is not None:
        mapping = _mapping(data.jsonl, target=target)
        return _open_jsonl(data.jsonl, mapping, data.on_bad_record, base_dir)
    assert data.hugging_face is not None
    mapping = _mapping(data.hugging_face, target=target)
    return _open_hugging_face(data.hugging_face, mapping, data.on_bad_record, base_dir)


def _open_jsonl(
    jsonl: Jsonl, mapping: FieldMapping, on_bad: OnBadRecord, base_dir: Path
) -> JsonlSource:
    paths = find_files(jsonl.uri, base_dir, default_cache_dir())
    source = open_jsonl(paths, mapping, on_bad=on_bad)
    if jsonl.digest is not None and source.digest != jsonl.digest:
        raise DataNotFound(
            f"data {jsonl.uri}: expected digest {jsonl.digest}, got {source.digest}; the data is not "
            f"what the run was planned for"
        )
    return source


def _open_hugging_face(
    dataset: HuggingFace, mapping: FieldMapping, on_bad: OnBadRecord, base_dir: Path
) -> ArrowSource | StreamSource:
    local = base_dir / dataset.path
    name = DatasetName(
        path=str(local) if local.is_dir() else dataset.path,
        name=dataset.name,
        split=dataset.split,
        revision=dataset.revision,
    )
    open_it = open_stream if dataset.streaming else open_dataset
    return open_it(name, mapping, on_bad=on_bad)


def _open_plugin(
    rows: PluginRows, mapping: FieldMapping, on_bad: OnBadRecord, folders: Sequence[Path]
) -> ServedRows:
    from rollout.plugins.sidecar.kinds.data import open_rows
    from rollout.plugins.sidecar.named import open_plugin, parameters_of

    plugin = open_plugin(rows, "data", folders, "data.plugin")
    return open_rows(plugin, parameters_of(rows), rows.split, mapping, on_bad)


def _mapping(fields: Jsonl | HuggingFace | PluginRows, *, target: Target) -> FieldMapping:
    """The API's default answer field may be absent from a record; one that was chosen may not."""
    chosen = fields.answer_field != Jsonl.model_fields["answer_field"].default
    return FieldMapping(
        prompt_field=fields.prompt_field,
        answer_field=fields.answer_field if chosen else None,
        messages_field=fields.messages_field,
        chosen_field=fields.chosen_field,
        rejected_field=fields.rejected_field,
        label_field=fields.label_field,
        margin_field=fields.margin_field,
        system_prompt=fields.system_prompt,
        template=fields.template,
        target=target,
    )


def build_order(
    source: DataSource, *, seed: int, shuffle: bool = True, epochs: int | None = None
) -> DataOrder:
    """The order in which a run visits ``source``; streams are shuffled within their window."""
    window = source.window if isinstance(source, StreamSource | HostedSource) else None
    return DataOrder(length=len(source), seed=seed, shuffle=shuffle, window=window, epochs=epochs)
