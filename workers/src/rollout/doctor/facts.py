"""What a machine has, as plain data: bytes, counts, versions. Nothing here looks or judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. Memory in bytes; ``capability`` as CUDA counts it; ``free`` is what no other process holds."""

    name: str
    memory: int
    free: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """The installed torch. ``built_for`` is ``cpu``, ``cuda 13.0`` or the like; ``error``: why it cannot be imported.

    ``triton``: the release of what compiles kernels for it; empty without one.
    """

    version: str = ""
    built_for: str = ""
    nccl: str = ""
    triton: str = ""
    devices: tuple[Device, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangFacts:
    """SGLang's own environment: the interpreter that is named (empty: none is), its release, or why it cannot be asked."""

    python: str = ""
    version: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A place that runs write to. ``free`` in bytes; ``error``: why nothing can be written there."""

    path: str
    free: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The hub of models and data. ``error``: why it was not reached; ``offline``: it was not asked."""

    endpoint: str
    offline: bool = False
    has_token: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Everything that is looked at. ``nodes`` are the accelerators that the kernel shows (``/dev/nvidia*``).

    ``versions`` are installed distributions by name; ``sandbox`` is empty, or why tools cannot be kept in; ``images``
    is empty, or why no images of processes can be made.
    """

    system: str
    architecture: str
    python: tuple[int, int]
    cores: int
    memory: int
    memory_available: int
    open_files: int
    shared_memory: Folder
    runs: Folder
    cache: Folder
    driver: str
    nodes: int
    torch: TorchFacts
    versions: Mapping[str, str] = field(default_factory=dict)
    sglang: SglangFacts = SglangFacts()
    sandbox: str = ""
    images: str = ""
    hub: Hub
    kubeconfig: str = ""
