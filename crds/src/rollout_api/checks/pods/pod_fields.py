"""What a user may write about pods of any kind: labels, devices, variables, flags of servers. Fields are named by the caller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollout_api import names
from rollout_api.fields.credentials import names_credential
from rollout_api.fields.reserved import VLLM_FLAGS, is_flag_value, is_loader_variable, is_vllm_flag
from rollout_api.problems import Problem
from rollout_api.v1alpha1.common import EnvVar, Parameter
from rollout_api.v1alpha1.pods.pods import PodSettings

_PLAIN = frozenset({"cpu", "memory", "ephemeral-storage"})
_RESERVED_ENV = ("ROLLOUT_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK")


def find_taken_labels(settings: PodSettings, place: str) -> Iterator[Problem]:
    """Labels by which the operator finds its pods."""
    for key in settings.labels:
        if key.startswith(f"{names.DOMAIN}/"):
            yield Problem(
                field=f"{place}.labels",
                reason="ReservedName",
                message=f"the label {key!r} belongs to the operator",
                fix="choose another key",
            )


def find_devices(settings: PodSettings, place: str) -> Iterator[Problem]:
    """What no ceiling and no quota of devices would count."""
    asked = settings.resources
    for part, there in (("requests", asked.requests), ("limits", asked.limits)) if asked else ():
        for name in there:
            if name not in _PLAIN and not name.startswith("hugepages-"):
                yield Problem(
                    field=f"{place}.resources.{part}",
                    reason="NotAllowed",
                    message=f"{name!r} is a device, which no ceiling of the runtime would count",
                    fix="ask for devices with accelerator; here are cpu, memory, ephemeral-storage "
                    "and hugepages",
                )


def find_taken_variables(env: Iterable[EnvVar], place: str) -> Iterator[Problem]:
    """Variables that the processes rely on, or by which they would run other code."""
    for index, item in enumerate(env):
        field = f"{place}.env[{index}].name"
        if item.name.startswith(_RESERVED_ENV):
            yield Problem(
                field=field,
                reason="ReservedName",
                message=f"the variable {item.name!r} is set by rollout",
                fix="choose another name",
            )
        elif is_loader_variable(item.name):
            yield Problem(
                field=field,
                reason="ReservedName",
                message=f"the variable {item.name!r} makes processes run other code than they were started with",
                fix="put modules into spec.code and libraries into the image",
            )


def find_plain_secrets(env: Iterable[EnvVar], place: str) -> Iterator[Problem]:
    """A token in a manifest is a token in Git."""
    for index, item in enumerate(env):
        if names_credential(item.name) and item.value:
            yield Problem(
                field=f"{place}.env[{index}].value",
                reason="SecretInPlainText",
                message=f"{item.name} looks like a secret and would lie in the manifest",
                fix="use valueFrom: {secretKeyRef: {name: ..., key: ...}}",
            )


def find_bad_flags(arguments: Iterable[Parameter], place: str) -> Iterator[Problem]:
    """Flags of a vLLM server that do more than tune it. ``place`` is the path of ``extraArguments``."""
    for index, argument in enumerate(arguments):
        field = f"{place}[{index}]"
        if not is_vllm_flag(argument.name):
            yield Problem(
                field=f"{field}.name",
                reason="ReservedName",
                message=f"{argument.name!r} is set by rollout, or is not a flag that only tunes the server",
                fix=f"use the field of engine.vllm, or one of {', '.join(sorted(VLLM_FLAGS))}",
            )
        elif not is_flag_value(argument.value):
            yield Problem(
                field=f"{field}.value",
                reason="NotSupported",
                message=f"{argument.value!r:.80} is no plain word or number",
                fix="write letters, digits and . , _ + - only",
            )
