"""Sandbox pods of a runtime: closed by more than a container, and no more kept ready than there may be."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.problems import Problem
from rollout_api.v1alpha1.runtime import Sandbox


def check_sandbox(sandbox: Sandbox | None) -> Iterator[Problem]:
    """What stands against making such pods."""
    if sandbox is None:
        return
    if sandbox.runtime_class_name is None and not sandbox.user_namespaces:
        yield Problem(
            field="spec.sandbox",
            reason="NoSandbox",
            message="neither runtimeClassName nor userNamespaces: root of a container would be root of its node",
            fix="name a RuntimeClass such as gvisor or kata, or set userNamespaces: true",
        )
    if sandbox.warm_pods > sandbox.max_pods:
        yield Problem(
            field="spec.sandbox.warmPods",
            reason="OutOfRange",
            message=f"{sandbox.warm_pods} pods are kept ready, and a run may have {sandbox.max_pods}",
            fix="lower warmPods, or raise maxPods",
        )
