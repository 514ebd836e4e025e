"""``train.output``: the model of a run that has ended well goes where its spec says, as by ``rollout model export``.

The place is looked at before training time is spent: it has to be empty, and one that can be written.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rollout.errors import PlaceUnreachable, SpecError
from rollout.objects.bucket_files import BucketFiles, open_bucket_files
from rollout.objects.places import is_bucket
from rollout.runs.export.choose import VersionSelector
from rollout.runs.export.export import Export, Exported, export_model
from rollout.runs.export.folder import is_taken
from rollout.runs.export.upload import MARKER, export_to_bucket
from rollout.runs.pipeline import LINEAGE_FILE, find_output
from rollout_api.v1alpha1.run import RolloutRunSpec

FIELD = "spec.train.output.uri"


def require_output(spec: RolloutRunSpec, *, resumed: bool) -> None:
    """Raise SpecError where something is there already, PlaceUnreachable where nothing can be written.

    What an export of this very run has begun there is gone on with: ``resumed``.
    """
    uri = find_output(spec)
    if uri is None:
        return
    if not is_bucket(uri):
        _require_folder(_folder_of(uri))
        return
    files = _open(uri, spec)
    files.require()
    there = files.names()
    if there and (LINEAGE_FILE in there or not (resumed and MARKER in there)):
        raise SpecError(
            f"{FIELD}: {uri}: something is there ({there[0]}); name a place that is empty"
        )


def export_output(run: Path, spec: RolloutRunSpec) -> Exported | None:
    """Write the newest weights of the run in the folder ``run``; None where they go nowhere.

    A repeat finds them whole. Raises SpecError and StoreError.
    """
    uri, export = find_output(spec), Export(selector=VersionSelector())
    if uri is None:
        return None
    if is_bucket(uri):
        return export_to_bucket(run, _open(uri, spec), export)
    return export_model(run, _folder_of(uri), export)


def _open(uri: str, spec: RolloutRunSpec) -> BucketFiles:
    """The objects' own server is meant where it is one of the same kind of bucket."""
    storage = spec.storage
    same = storage is not None and urlsplit(storage.uri or "").scheme == urlsplit(uri).scheme
    if storage is None or not same:
        return open_bucket_files(uri, endpoint=None, region=None)
    return open_bucket_files(
        uri, endpoint=storage.endpoint, region=storage.region, kms_key=storage.kms_key
    )


def _folder_of(uri: str) -> Path:
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(uri).absolute()


def _require_folder(folder: Path) -> None:
    if is_taken(folder):
        raise SpecError(
            f"{FIELD}: {folder}: something is there; name a folder that is not there yet"
        )
    above = next(one for one in folder.parents if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise PlaceUnreachable(f"{FIELD}: {folder}: {above} is no folder that may be written into")
