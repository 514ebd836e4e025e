"""What a sandbox pod runs: our own process 1 as one argument of Python, so that its image needs nothing of ours."""

from __future__ import annotations

import base64
import zlib
from functools import cache
from importlib import resources

from rollout.tools.sandbox.seccomp import build_filter
from rollout.tools.sandbox.system_calls import MACHINE_CALLS

LOCAL_FAMILIES = (1,)
"""AF_UNIX: in a pod there is a network, so that no other socket may be made."""
_PROGRAMS, _PODS = "rollout.tools.sandbox.programs", "rollout.tools.sandbox.pods"
_PARTS = (
    ("inside", _PROGRAMS),
    ("hosting", _PROGRAMS),
    ("serving", _PROGRAMS),
    ("doorway", _PODS),
    ("in_pod", _PODS),
)
_BOOT = (
    "import base64,sys,types,zlib\n"
    "for n,s in {parts!r}:\n"
    " m=sys.modules[n]=types.ModuleType(n)\n"
    " exec(compile(zlib.decompress(base64.b64decode(s)),n,'exec'),m.__dict__)\n"
    "sys.modules['in_pod'].main()\n"
)


@cache
def pod_command() -> tuple[str, ...]:
    """The command of a sandbox pod's container; no secret is in it."""
    parts = tuple((name, _packed(package, name)) for name, package in _PARTS)
    return ("python3", "-I", "-S", "-c", _BOOT.format(parts=parts))


@cache
def pod_filters(*, asks: bool = False) -> dict[str, str]:
    """The filter of system calls for each kind of machine that a pod may run on, as base64.

    ``asks``: process 1 is asked about sockets of the internet.
    """
    return {
        name: base64.b64encode(build_filter(calls, LOCAL_FAMILIES, asks=asks)).decode()
        for name, calls in MACHINE_CALLS.items()
    }


def call_numbers(*names: str) -> dict[str, dict[str, int]]:
    """Those of system calls, for each kind of machine."""
    return {
        machine: {name: calls.numbers[name] for name in names}
        for machine, calls in MACHINE_CALLS.items()
    }


def _packed(package: str, name: str) -> str:
    source = resources.files(package).joinpath(f"{name}.py").read_bytes()
    return base64.b64encode(zlib.compress(source, 9)).decode()
