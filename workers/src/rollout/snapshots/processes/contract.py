"""The seam of images of processes: what can make them here, and the ways that are refused, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollout.errors import SnapshotRefused

REFUSED: Mapping[str, str] = {
    "kubelet": (
        "the kubelet's checkpoint call needs nodes/checkpoint, which reads the memory, and so every Secret, of all pods of"
        " a node, and leaves plain archives on it"
    ),
    "vllm": (
        "`vllm snapshot` is of one GPU before it serves, leaves weights and requests out, and compares to 1e-3"
    ),
}
"""Other ways to make such images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Whether images of processes can be made here: ``version`` of what makes them, or the ``reason`` why not."""

    version: str = ""
    reason: str = ""

    @property
    def is_there(self) -> bool:
        """Whether they can."""
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A program and all that it has started.

    ``init`` is process 1 of its namespace, as this machine counts; ``root`` the program, as the namespace counts.
    """

    init: int
    root: int


class ProcessSnapshotter(Protocol):
    """Makes images of processes, and processes of images."""

    def support(self, *, tried: bool = True) -> Support:
        """Whether it can, on this machine, as this user; ``tried`` on its kernel, which takes up to a second."""
        ...

    def dump(self, tree: Tree, folder: Path, *, stop: bool) -> None:
        """Write the image of a tree into an empty folder; it goes on as if nothing was, or is ended where ``stop``.

        Raises SnapshotRefused: the tree goes on then.
        """
        ...

    def restore_argv(self) -> list[str]:
        """The command by which process 1 of a new cell has the processes of an image as its children. Raises SnapshotRefused.

        It works in the folder of the cell's dump, where it is fed (``feeding``).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSnapshotter:
    """Where no images are made; ``reason`` says why."""

    reason: str

    def support(self, *, tried: bool = True) -> Support:  # noqa: ARG002 - the contract's
        """As the contract says."""
        return Support(reason=self.reason)

    def dump(self, tree: Tree, folder: Path, *, stop: bool) -> None:  # noqa: ARG002 - the contract's
        """Refuses."""
        raise self._refusal()

    def restore_argv(self) -> list[str]:
        """Refuses."""
        raise self._refusal()

    def _refusal(self) -> SnapshotRefused:
        return _unsupported(self.reason)


def require_support(snapshotter: ProcessSnapshotter, *, tried: bool = True) -> Support:
    """What makes images here; ``tried`` as the contract says. Raises SnapshotRefused where nothing does."""
    support = snapshotter.support(tried=tried)
    if not support.is_there:
        raise _unsupported(support.reason)
    return support


def _unsupported(reason: str) -> SnapshotRefused:
    return SnapshotRefused(f"images of processes are not supported here: {reason}")
