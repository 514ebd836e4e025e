"""Small shapes that many kinds share: references, parameters, environment variables, sources."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from rollout_api.base import (
    ApiModel,
    Label,
    Message,
    Name,
    ObjectName,
    OneOf,
    Rule,
    Text,
    Timestamp,
    Uri,
    many,
    unique,
)

EnvName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
]
Dtype = Literal["Float32", "BFloat16"]


class NameRef(ApiModel):
    """Names an object of a fixed kind in the same namespace."""

    name: ObjectName
    """Name of the object."""


class SecretKeyRef(ApiModel):
    """Names one key of a Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Name
    """Key whose value is used."""


class Parameter(ApiModel):
    """One named argument of a builtin or plugin; its type is the receiver's to parse."""

    name: Name
    """Name of the argument."""
    value: Text
    """Its value, as text: numbers and booleans are written in quotes."""


class ParameterSource(OneOf):
    """Where further parameters come from: every key of one object is a parameter."""

    config_map_ref: NameRef | None = None
    """A ConfigMap in the same namespace."""
    secret_ref: NameRef | None = None
    """A Secret in the same namespace; its values are never written to status, events or logs."""


Parameters = Annotated[tuple[Parameter, ...], unique(lambda item: item.name)]


class Builtin(ApiModel):
    """Something rollout ships, by name."""

    name: Name
    """Its name; an unknown one is refused with the names that there are."""
    parameters: Parameters = many(64, key="name")
    """Arguments; each builtin documents its own."""
    parameters_from: tuple[ParameterSource, ...] = many(8)
    """Objects that hold further arguments. Not supported by this version: refused."""


class EnvSource(ApiModel):
    """Where the value of an environment variable lies."""

    secret_key_ref: SecretKeyRef
    """One key of a Secret in the same namespace. A local run takes the variable from the environment of the command."""


class EnvVar(ApiModel):
    """One environment variable: its value, or where the value lies, as in a container's `env`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.value) || !has(self.valueFrom)",
            "a variable has value or valueFrom: write one of them",
            "valueFrom",
        ),
    )

    name: EnvName
    """Name of the variable."""
    value: Text | None = None
    """Its value, in plain text; for secrets use `valueFrom`. Unset beside no `valueFrom`: the empty text."""
    value_from: EnvSource | None = None
    """Where the value lies, such as a key of a Secret."""

    @property
    def secret(self) -> SecretKeyRef | None:
        """The key of a Secret that holds the value. None: the value is plain."""
        return None if self.value_from is None else self.value_from.secret_key_ref

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.value is not None and self.value_from is not None:
            raise PydanticCustomError(
                "exactly_one",
                "{name} has value and valueFrom: write one of them",
                {"name": self.name},
            )
        return self


EnvRole = Literal["Actor", "Learner", "Coordinator"]


class RunEnvVar(EnvVar):
    """One environment variable of a run, and who gets it."""

    roles: tuple[EnvRole, ...] = many(3)
    """Whose processes get it. `Coordinator`: those that run your data code beside it; the coordinator itself gets
    none but a few credentials by name. Empty: all."""

    def goes_to(self, role: EnvRole) -> bool:
        """Whether the processes of a role get it."""
        return not self.roles or role in self.roles


EnvVars = Annotated[tuple[EnvVar, ...], unique(lambda item: item.name)]
RunEnvVars = Annotated[tuple[RunEnvVar, ...], unique(lambda item: item.name)]


class FromRun(ApiModel):
    """The result of another run in the same namespace (or the same local file)."""

    name: Label
    """Name of the RolloutRun; whoever names it waits until it has finished well."""
    snapshot: Name = "Latest"
    """Which of its snapshots: `Latest`, `Best` (chosen by an evaluation with `selects`), or a name."""


class ModelSource(OneOf):
    """Where a model's weights come from."""

    members: ClassVar[tuple[str, ...]] = ("uri", "from_run")

    uri: Uri | None = None
    """`hf://owner/name`, `file://`, `rollout://` (a model built locally), or a folder at `s3://` or `gs://`, which is fetched; in a cluster by the coordinator's pod, from places that the runtime's `allowed.storage` names."""
    from_run: FromRun | None = None
    """Weights of another run's snapshot."""
    revision: Name | None = None
    """Commit, tag or branch of an `hf://` model. Unset: resolved at plan time and recorded."""


class RuntimeRef(ApiModel):
    """Names the platform's runtime that this object runs on."""

    kind: Literal["ClusterRolloutRuntime", "RolloutRuntime"] = "ClusterRolloutRuntime"
    """Kind of the runtime: cluster-wide, or of this namespace."""
    name: ObjectName
    """Name of the runtime."""


class Condition(ApiModel):
    """One aspect of an object's state (metav1.Condition)."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    """Which aspect; docs/reference/conditions.md lists them."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds: `True`, `False`, or `Unknown`."""
    reason: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$"
        ),
    ]
    """Why, from a closed list; docs/reference/conditions.md says what to do about each."""
    message: Message
    """The same for people: which object, expected, got."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: int = Field(ge=0, default=0)
    """The generation of the spec that this condition speaks about."""
