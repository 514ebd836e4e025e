"""Object metadata: what rollout reads of it. Fields that only the API server writes are ignored."""

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from rollout_api.base import ApiModel, Name, ObjectName
from rollout_api.v1alpha1.pods.pods import LabelKey, LabelValue

RUN_NAME_LENGTH_MAX = 40
SWEEP_NAME_LENGTH_MAX = 34
"""Leaves room for the runs' own ending, ``-f001``."""
RUN_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"


class Meta(ApiModel):
    """Kubernetes' own metadata of an object."""

    model_config = ConfigDict(extra="ignore")

    name: ObjectName
    """Name, unique per kind and namespace."""
    namespace: Name | None = None
    """Namespace. Unset: the current one; locally it has no meaning."""
    uid: Name | None = None
    """Identity given by the API server or the local runner."""
    generation: int = Field(default=0, ge=0)
    """Counter of spec changes, kept by the API server."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels, by which objects are selected."""
    annotations: dict[LabelKey, str] = Field(default_factory=dict)
    """Annotations: notes of people and tools."""


class RunMeta(Meta):
    """Metadata of an object from whose name child names are made."""

    name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=RUN_NAME_LENGTH_MAX, pattern=RUN_NAME_PATTERN),
    ]
    """Name: at most 40 characters, a letter first; the names of Services and StatefulSets follow."""


class SweepMeta(Meta):
    """Metadata of an object from whose name names of runs are made."""

    name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=SWEEP_NAME_LENGTH_MAX, pattern=RUN_NAME_PATTERN),
    ]
    """Name: at most 34 characters, a letter first; the names of runs follow."""
