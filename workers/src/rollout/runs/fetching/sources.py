"""Which models and data of a spec have to be fetched, and the fetching of them before a run looks at them.

Light: the libraries that fetching takes are loaded where there is something to fetch.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rollout.models.fetched import is_fetched
from rollout.models.files import default_cache_dir
from rollout_api.checks.within import models_within
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.data import Jsonl
from rollout_api.v1alpha1.run import RolloutRunSpec


def find_far(spec: RolloutRunSpec) -> dict[str, ModelSource | Jsonl]:
    """Models and data in buckets and on the web, by the field of their URI."""
    return {
        f"{path}.uri": model
        for path, model in models_within(spec, "spec")
        if isinstance(model, ModelSource | Jsonl) and is_fetched(model.uri or "")
    }


def fetch_sources(
    spec: RolloutRunSpec, cache_dir: Path | None = None, *, besides: Collection[str] = ()
) -> None:
    """Copy every model and data file of the spec that lies in a bucket or on the web, ``besides`` URIs that others bring.

    Raises ModelNotFound and DataNotFound with the field; SpecError, StoreError and PlaceUnreachable.
    """
    cache = cache_dir or default_cache_dir()
    found = {field: one for field, one in find_far(spec).items() if one.uri not in besides}
    for field, model in found.items():
        from rollout.runs.fetching.copies import fetch_data_file, fetch_model_folder

        if isinstance(model, Jsonl):
            fetch_data_file(model.uri, model.digest or "", field, cache, spec.storage)
        else:
            fetch_model_folder(model.uri or "", field, cache, spec.storage)
