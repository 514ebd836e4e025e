"""From untrusted documents to models. Reads no files; raises pydantic's ValidationError."""

from collections.abc import Mapping
from typing import Any

from rollout_api.base import ApiModel
from rollout_api.v1alpha1.run import RolloutRun

LOCAL_SCHEMA_VERSION = 1


def parse_run(document: Mapping[str, Any]) -> RolloutRun:
    """Validate one RolloutRun document.

    A document without ``apiVersion`` is a local file: ``schema_version`` (1), an optional ``name``,
    and the fields of the spec beside them.

    Raises pydantic.ValidationError: its locations are camelCase paths as written in the document.
    """
    return RolloutRun.model_validate(as_object(document))


def as_object(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A local document in the form of a Kubernetes object; an object as it is."""
    if "apiVersion" in document or "schema_version" not in document:
        return document
    version = document["schema_version"]
    if version != LOCAL_SCHEMA_VERSION:
        raise ValueError(f"schema_version must be {LOCAL_SCHEMA_VERSION}, got {version!r}")
    spec = {k: v for k, v in document.items() if k not in ("schema_version", "name")}
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": document.get("name", "run")},
        "spec": spec,
    }


def parse_object(document: Mapping[str, Any]) -> ApiModel:
    """Validate one document of any kind. Raises ValueError for an unknown kind."""
    from rollout_api.v1alpha1.objects.kinds import model_of

    document = as_object(document)
    return model_of(str(document.get("kind"))).model_validate(document)
