"""What runs may add to what their runtime provides, and which namespaces may use it. Nothing that is not named."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from rollout_api.base import ApiModel, Label, ObjectName, Rule, many
from rollout_api.v1alpha1.environment import HttpHost
from rollout_api.v1alpha1.pods.pods import LabelKey, LabelValue, Toleration

Entry = Annotated[str, StringConstraints(min_length=1, max_length=512)]
"""Matches what is equal to it, and, when it ends in `/`, what begins with it."""
NAMES_MEANT = "names are for from: Names; leave them out, or write from: Names"
SELECTOR_MEANT = "a selector and from: Selector belong together; write both, or neither"


class Allowed(ApiModel):
    """What a run may add itself. An entry that ends in `/` stands for all that begins with it."""

    annotations: tuple[Entry, ...] = many(64)
    """Keys of annotations of pods, such as `team.example/`."""
    labels: tuple[Entry, ...] = many(64)
    """Keys of labels of pods."""
    images: tuple[Entry, ...] = many(64)
    """Repositories (`registry.example/team/`), or single images with tag or digest."""
    require_digests: bool = False
    """Refuse images of runs that are not named by digest (`...@sha256:...`)."""
    storage: tuple[Entry, ...] = many(64)
    """Places of objects, and addresses of their servers, such as `s3://bucket/$(namespace)/`; `$(namespace)`
    stands for the run's namespace. Objects are judged by where they go, `<storage.uri>/<namespace>`, too."""
    wheels: tuple[Entry, ...] = many(64)
    """Places of wheels (`https://files.example/research/`, `s3://bucket/$(namespace)/`, `file:///wheels/`)."""
    tolerations: tuple[Toleration, ...] = many(64)
    """A run's toleration has to be covered by one of these, field by field."""
    priority_classes: tuple[ObjectName, ...] = many(64)
    """PriorityClasses of pods, each by its whole name."""
    hosts: tuple[HttpHost, ...] = many(64)
    """Hosts whose pages the policy of a run may get (`environment.http.hosts`), each as a run writes it: `host` or `host:port`."""
    data_code_network: bool = False
    """Let data code (`environment.python`, `suite.python`) use the network of the coordinator's pod. False: its
    container opens no connection but the one to the coordinator, and data from a hub is refused beside it."""


class NamespaceSelector(ApiModel):
    """Namespaces by their labels, which only who may edit namespaces can set."""

    match_labels: dict[LabelKey, LabelValue] = Field(min_length=1, max_length=16)
    """Labels with exactly these values; a namespace has all of them."""


class AllowedNamespaces(ApiModel):
    """From which namespaces runs may name a runtime of the whole cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.from == 'Names' || !has(self.names) || size(self.names) == 0",
            NAMES_MEANT,
            "names",
        ),
        Rule(
            "(self.from == 'Selector') == has(self.selector)",
            SELECTOR_MEANT,
            "selector",
        ),
    )

    from_: Literal["All", "Names", "Selector"] = Field(alias="from")
    """Every namespace, those of `names`, or those that `selector` matches when an attempt starts."""
    names: tuple[Label, ...] = many(512)
    """Namespaces, each by its whole name."""
    selector: NamespaceSelector | None = None
    """Namespaces whose labels match, with `from: Selector`."""

    @model_validator(mode="after")
    def _names_are_meant(self) -> Self:
        if self.from_ != "Names" and self.names:
            raise PydanticCustomError("names_of_others", NAMES_MEANT)
        if (self.from_ == "Selector") != (self.selector is not None):
            raise PydanticCustomError("selector_of_others", SELECTOR_MEANT)
        return self
