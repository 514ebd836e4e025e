"""Adapters in a vLLM server: every version under a name of its own, none ever changed in place.

The server keeps as many as may be wanted (``slots``); the oldest goes first. The tensors that its loader is
handed are hashed in its own process.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from rollout.engines.vllm.command import AdapterSettings
from rollout.engines.vllm.server import VllmServer
from rollout.engines.vllm.wire import label_version, parse_loaded
from rollout.types import WeightVersion
from rollout.weights.lora import A

WATCH = {"method": "watch_adapters"}
REPORT = {"method": "report_adapter"}
SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An adapter that was loaded: its name in the server, and the digest of what was handed over."""

    name: str
    digest: str


class AdapterShelf:
    """Owns the names of the adapters that one server holds, oldest first."""

    def __init__(self, settings: AdapterSettings, server: VllmServer) -> None:
        self._settings = settings
        self._server = server
        self._names: list[str] = []
        self._num_loads = 0

    def serves(self, server: VllmServer) -> bool:
        """Whether these are the adapters of ``server``, and not of one that is gone."""
        return self._server is server

    async def load(self, version: WeightVersion, weights: Path) -> Placed:
        """Load one more, whose tensors are in the safetensors file ``weights``. Raises EngineError."""
        self._num_loads += 1
        name = f"{label_version(version)}-{self._num_loads}"
        folder = self._server.private_dir / "adapters" / name
        write_adapter(folder, weights, self._settings)
        while len(self._names) >= self._settings.slots:
            await self._drop(self._names.pop(0))
        call = self._server.call
        await call("/collective_rpc", body=WATCH, seconds_max=SECONDS_MAX)
        body = {"lora_name": name, "lora_path": str(folder)}
        await call("/v1/load_lora_adapter", body=body, seconds_max=SECONDS_MAX)
        self._names.append(name)
        answer = await call("/collective_rpc", body=REPORT, seconds_max=SECONDS_MAX)
        return Placed(name=name, digest=parse_loaded(answer))

    async def _drop(self, name: str) -> None:
        body = {"lora_name": name}
        await self._server.call("/v1/unload_lora_adapter", body=body, seconds_max=SECONDS_MAX)
        shutil.rmtree(self._server.private_dir / "adapters" / name, ignore_errors=True)


def write_adapter(folder: Path, weights: Path, settings: AdapterSettings) -> None:
    """A folder as PEFT and vLLM read it. The tensors are copied: the actor patches its file in place."""
    folder.mkdir(parents=True)
    shutil.copyfile(weights, folder / "adapter_model.safetensors")
    with safe_open(weights, framework="np") as tensors:
        names = [name.removesuffix(A) for name in tensors.keys() if name.endswith(A)]  # noqa: SIM118 - no mapping: it has keys() only
    config = {
        "peft_type": "LORA",
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in names}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
