"""A run of this machine that is over, one snapshot of it, and other runs of another name that begin with that."""

from __future__ import annotations

from pathlib import Path

from ledger_kit import IDENTITY
from snapshot_kit import make_run

from rollout.ledger.opening import open_reader
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import create_snapshot
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.signing import Signer
from rollout_api.worker import Layout, ResolvedRun, RestoreOrder, RunIdentity, WorkerConfig

SPEC = {
    "model": {"uri": "file:///models/tiny", "chatTemplate": "plain"},
    "train": {
        "algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 4}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "sampling": {"maxNewTokens": 4},
        "maxSteps": 5,
    },
}


async def make_whole_run(folder: Path) -> WorkerConfig:
    """A run with its ledger, its objects and its ``worker.json``."""
    await make_run(folder)
    config = config_at(folder)
    write_config(config)
    return config


def take_snapshot(folder: Path, signer: Signer) -> Manifest:
    return create_snapshot(RunDir(path=folder), signer).manifest


def another(config: WorkerConfig, folder: Path, made: Manifest) -> WorkerConfig:
    """The configuration of a run that begins with a snapshot of the run of ``config``."""
    assert made.signature is not None
    order = RestoreOrder(
        snapshot=made.id, place=config.layout.objects_dir, trusted=(made.signature.signer,)
    )
    folder.mkdir(parents=True)
    return config_at(folder).model_copy(
        update={"run": RunIdentity(name="second", uid="uid-2"), "restore": order}
    )


def step_of(config: WorkerConfig) -> int:
    path = Path(config.layout.ledger_path)
    with open_reader(config.spec.storage, path, config.run.uid) as ledger:
        return ledger.run().step


def write_config(config: WorkerConfig) -> None:
    text = config.model_dump_json(exclude_none=True)
    (Path(config.layout.run_dir) / "worker.json").write_text(text)


def config_at(folder: Path) -> WorkerConfig:
    data = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": IDENTITY.name},
        "spec": SPEC,
    }
    return WorkerConfig(
        run=RunIdentity(name=IDENTITY.name, uid=IDENTITY.uid),
        spec_digest=IDENTITY.spec_digest,
        spec=prepare_run(Document(source="run.yaml", data=data, lines={})).spec,
        resolved=ResolvedRun(
            model_path="/models/tiny",
            model_digest="blake3:" + "1" * 64,
            dtype="Float32",
            prompt_tokens_max=16,
        ),
        layout=Layout(
            run_dir=str(folder),
            coordinator_url="http://127.0.0.1:1",
            token_file=str(folder / "token"),
            objects_dir=str(folder / "objects"),
            ledger_path=str(folder / "ledger.db"),
        ),
    )
