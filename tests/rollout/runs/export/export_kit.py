"""Runs as they lie on a disk: a configuration, a ledger, objects and anchors, with the weights that a test gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from rollout.learner.model.adapter import LoraSettings, add_adapter
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import DTYPES, Policy, load_model
from rollout.learner.model.scorer import load_scorer
from rollout.ledger.records import Admission, AnchorManifest, Cursor, RunIdentity, StepCommit
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.models.files import digest_model
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.types import WeightVersion
from rollout.weights.digest import digest_tensors
from rollout.weights.safetensors import safetensors_parts
from rollout_api.worker import Layout, ResolvedRun, WorkerConfig
from rollout_api.worker import RunIdentity as WorkerIdentity

Tensors = Mapping[str, torch.Tensor]
SPEC = "blake3:" + "0" * 64
GRPO = {
    "algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 4}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "sampling": {"maxNewTokens": 4},
    "maxSteps": 5,
}
RM = {
    "algorithm": {"rm": {"batchSize": 4, "maxLength": 32}},
    "data": {"jsonl": {"uri": "pairs.jsonl"}},
    "maxSteps": 5,
}
LORA = {"rank": 4, "alpha": 8, "targets": ["Attention", "Mlp"]}
VLLM = {"replicas": 1, "engine": {"vllm": {}}}


@dataclass
class Trained:
    """A policy whose parameters were moved, as a learner holds it."""

    policy: Policy
    masters: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]


def train(
    base: Path,
    *,
    dtype: str = "Float32",
    lora: bool = False,
    served: bool = False,
    scores: bool = False,
) -> Trained:
    """Move every master a little, by a seed."""
    model: Any = load_scorer(base, seed=4) if scores else load_model(base)
    if lora:
        add_adapter(model, LoraSettings(rank=4, alpha=8, targets=("Attention", "Mlp")), seed=3)
    policy = Policy(model, DTYPES[dtype], Parallel(), serves_adapter=served)
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for master in policy.masters.values():
            master.add_(torch.randn(master.shape, generator=noise) * 0.02)
    policy.cast()
    own = {name: t.detach().clone() for name, t in policy.full_masters().items()}
    return Trained(policy, own, {n: t.detach().clone() for n, t in policy.weights().items()})


@dataclass
class FakeRun:
    """A run's folder. Steps are committed in order, each with the weights that it came to."""

    folder: Path
    base: Path
    spec: dict[str, Any] = field(default_factory=lambda: {"train": GRPO})
    dtype: str = "Float32"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "snapshots").mkdir()
        self.store = FilesystemStore(self.folder / "objects")
        self.config = self._config()
        text = self.config.model_dump_json(exclude_none=True)
        (self.folder / "worker.json").write_text(text)
        identity = RunIdentity(uid="u", name="tiny", spec_digest=SPEC)
        self._ledger = SqliteLedger(self.folder / "ledger.db", identity)
        self.step = 0
        self.versions: list[WeightVersion] = []

    def _config(self) -> WorkerConfig:
        model = {"uri": self.base.as_uri(), "chatTemplate": "plain", **self.spec.get("model", {})}
        data = {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": "RolloutRun",
            "metadata": {"name": "tiny"},
            "spec": {**self.spec, "model": model},
        }
        source = str(self.folder / "run.yaml")
        spec = prepare_run(Document(source=source, data=data, lines={})).spec
        return WorkerConfig(
            run=WorkerIdentity(name="tiny", uid="u"),
            spec_digest=SPEC,
            spec=spec,
            resolved=ResolvedRun(
                model_path=str(self.base),
                model_digest=digest_model(self.base),
                dtype=self.dtype,
                prompt_tokens_max=16,
                data_digests={"train": "blake3:" + "d" * 64},
            ),
            layout=Layout(
                run_dir=str(self.folder),
                coordinator_url="http://127.0.0.1:1",
                token_file=str(self.folder / "token"),
                objects_dir=str(self.folder / "objects"),
                ledger_path=str(self.folder / "ledger.db"),
            ),
        )

    def begin(self, weights: Tensors) -> WeightVersion:
        version = self.version(0, weights)
        registered = asyncio.run(self._begin(version))
        self._incarnation = registered
        self.versions.append(version)
        return version

    def close(self) -> None:
        asyncio.run(self._ledger.close())

    async def _begin(self, version: WeightVersion) -> int:
        incarnation = (await self._ledger.register("learner", "learner")).incarnation
        await self._ledger.publish_initial(incarnation, version, "blake3:c0")
        return incarnation

    def version(self, step: int, weights: Tensors) -> WeightVersion:
        name = self.store.put_parts(safetensors_parts(weights))
        return WeightVersion(lineage=0, step=step, digest=digest_tensors(weights), object=name)

    def commit(self, weights: Tensors, *, masters: Tensors | None = None) -> WeightVersion:
        """The next step; with ``masters`` an anchor of it, too."""
        self.step += 1
        version = self.version(self.step, weights)
        return self.commit_version(version, masters=masters)

    def commit_version(
        self, version: WeightVersion, *, masters: Tensors | None = None
    ) -> WeightVersion:
        self.step = version.step
        self.versions.append(version)
        asyncio.run(
            self._ledger.commit(
                StepCommit(
                    incarnation=self._incarnation,
                    lineage=0,
                    step=version.step,
                    dispositions=(),
                    rows=(),
                    plan={},
                    version=version,
                    chain=f"blake3:c{version.step}",
                    cursor=Cursor(next_ordinal=0),
                    metrics={},
                    phase_seconds={},
                    admission=Admission(tasks=(), next_admitted=0),
                )
            )
        )
        if masters is not None:
            asyncio.run(self._ledger.save_anchor(self._incarnation, self._anchor(version, masters)))
        return version

    def _anchor(self, version: WeightVersion, masters: Tensors) -> AnchorManifest:
        return AnchorManifest(
            name=f"step-{version.step:06d}",
            lineage=0,
            step=version.step,
            chain=f"blake3:c{version.step}",
            version=version,
            objects={"weights": self.store.put_parts(safetensors_parts(masters))},
        )

    def choose_best(self, version: WeightVersion) -> None:
        best = {"step": version.step, "version": msgspec.to_builtins(version)}
        (self.folder / "snapshots" / "Best.json").write_text(json.dumps(best))

    def object(self, name: str) -> Path:
        return self.store.path(name)


def make_run(tmp_path: Path, base: Path, steps: Sequence[Tensors] = (), **fields: Any) -> FakeRun:
    """A run ``tiny-1`` that has begun with the first weights and committed the others."""
    run = FakeRun(tmp_path / "runs" / "tiny-1", base, **fields)
    if steps:
        run.begin(steps[0])
        for weights in steps[1:]:
            run.commit(weights)
    return run


def moved(tensors: Tensors, by: float) -> dict[str, torch.Tensor]:
    return {name: tensor + by for name, tensor in tensors.items()}


def flip(path: Path, position: int) -> None:
    """Another bit in one byte of a file."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
