"""Mixed into vLLM's worker class (``--worker-extension-cls``): what the actor may ask of each worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rollout_vllm.adapters import AdapterWatch


class Reporting(Protocol):
    """Our weight-transfer engine, as far as it is asked."""

    def report(self) -> dict[str, Any]:
        """See ``FileTransferEngine``."""
        ...


class ServingWorker(Protocol):
    """What vLLM's worker gives us."""

    weight_transfer_engine: Reporting


class VersionReport:
    """Every public name must be new to vLLM's worker class."""

    def report_version(self: ServingWorker) -> dict[str, Any]:
        """The digest of the tensors that this worker handed to its loader, and their number."""
        return self.weight_transfer_engine.report()

    def watch_adapters(self) -> None:
        """Hash every adapter that is loaded from now on."""
        _watch().begin()

    def report_adapter(self) -> dict[str, Any]:
        """The digest of the adapter that this worker was last handed, and the number of its tensors."""
        return _watch().seen


def _watch() -> AdapterWatch:
    """Looked up when it is wanted: vLLM's adapters are imported where they are used only."""
    from rollout_vllm.adapters import WATCH

    return WATCH
