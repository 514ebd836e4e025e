"""Sandbox pods of a runtime: closed by more than a container, and no more kept ready than there may be."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from rollout_api.problems import Problem
from rollout_api.v1alpha1.runtime import Sandbox

_BINARY = {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")} | {
    letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)
}


def _amount(text: str) -> Decimal:
    """What a quantity comes to."""
    for suffix, factor in (_BINARY | _DECIMAL).items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


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
    for field, asked, most in (
        ("memory", sandbox.memory_request, sandbox.memory),
        ("cpu", sandbox.cpu_request, sandbox.cpu),
    ):
        if asked is not None and _amount(asked) > _amount(most):
            yield Problem(
                field=f"spec.sandbox.{field}Request",
                reason="OutOfRange",
                message=f"a pod is counted for {asked}, and may use {most}",
                fix=f"lower {field}Request, or raise {field}",
            )
    if sandbox.warm_pods > sandbox.max_pods:
        yield Problem(
            field="spec.sandbox.warmPods",
            reason="OutOfRange",
            message=f"{sandbox.warm_pods} pods are kept ready, and a run may have {sandbox.max_pods}",
            fix="lower warmPods, or raise maxPods",
        )
