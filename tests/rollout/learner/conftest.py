"""A tiny model, synthetic trajectories, and a coordinator that keeps its promises in memory."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.kl_controller import KlTarget
from rollout.algorithms.ppo import ReturnSettings, ValueSettings
from rollout.algorithms.surrogates.clip import Clipped
from rollout.errors import CoordinatorError
from rollout.learner.build import build_reference, build_trainer
from rollout.learner.checkpoint import AnchorPlace
from rollout.learner.config.learner import (
    LearnerSettings,
    OptimizerSettings,
    PolicySettings,
    ScheduleSettings,
)
from rollout.learner.config.ppo import CriticSettings, PpoSettings
from rollout.learner.context import LearnerContext
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model.numerics import apply_numerics, runtime_identity
from rollout.learner.model.parallel import Parallel
from rollout.learner.session import Session
from rollout.models.resolve import resolve_model
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol import messages as m
from rollout.rendering import build_renderer
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan, WeightVersion

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "coordinator")]

PROMPTS, GROUP = 4, 4
ALONE, WATCH = Parallel(), Watch()


@pytest.fixture(autouse=True)
def exact_numerics() -> None:
    apply_numerics(threads=1, exact=True)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2"
    return resolve_model(uri, cache_dir=tmp_path_factory.mktemp("models")).path


@pytest.fixture
def policy_settings() -> PolicySettings:
    return PolicySettings(
        loss=GrpoSettings(surrogate=Clipped(high=0.28)),
        advantage_scale="Group",
        advantage_epsilon=1e-6,
        old_logprobs="Learner",
        temperature=1.0,
        width=8,
    )


@pytest.fixture
def settings(policy_settings: PolicySettings) -> LearnerSettings:
    return LearnerSettings(
        algorithm=policy_settings,
        optimizer=OptimizerSettings(kind="adamw", learning_rate=1e-3),
        schedule=ScheduleSettings(),
        max_grad_norm=1.0,
        micro_batch_tokens=4096,
        activation_checkpointing=False,
        dtype="Float32",
        exact=True,
        hash_every_steps=1,
        anchor_every_steps=3,
        seed=7,
        spec_digest="blake3:" + "0" * 64,
    )


@pytest.fixture
def ppo_settings() -> PpoSettings:
    """Two epochs of two mini-batches, a warm-up step, a moving KL coefficient."""
    return PpoSettings(
        loss=GrpoSettings(),
        returns=ReturnSettings(),
        value=ValueSettings(),
        critic=CriticSettings(
            optimizer=OptimizerSettings(kind="adamw", learning_rate=1e-2), warmup_steps=1
        ),
        old_logprobs="Learner",
        temperature=1.0,
        width=8,
        kl_coefficient=0.05,
        kl_target=KlTarget(kl=0.01, horizon=100),
        epochs=2,
        mini_batches=2,
    )


def make_groups(
    step: int, prompts: int = PROMPTS, group: int = GROUP
) -> tuple[TrajectoryGroup, ...]:
    """Groups of ``step``, the same every time; lengths 1..8, rewards 0 or 1, two reward sources."""
    draw = random.Random(step)

    def trajectory(ordinal: int, sample: int, prompt: tuple[int, ...]) -> Trajectory:
        length = draw.randint(1, 8)
        right = float(draw.random() < 0.5)
        return Trajectory(
            ordinal=ordinal,
            sample=sample,
            prompt_ids=prompt,
            token_ids=tuple(draw.randrange(250) for _ in range(length)),
            actor_logprobs=tuple(-5.5 + draw.random() * 0.1 for _ in range(length)),
            loss_mask=(1,) * length,
            spans=(VersionSpan(start=0, end=length, lineage=0, step=step - 1),),
            rewards={"right": right, "short": 1 / length},
            reward=right + 0.1 / length,
            ending="length" if length == 8 else "stop",
        )

    def one_group(position: int) -> TrajectoryGroup:
        ordinal = (step - 1) * prompts + position
        prompt = tuple(draw.randrange(250) for _ in range(draw.randint(1, 6)))
        trajectories = tuple(trajectory(ordinal, sample, prompt) for sample in range(group))
        return TrajectoryGroup(ordinal=ordinal, trajectories=trajectories)

    return tuple(one_group(position) for position in range(prompts))


def make_batch(step: int, groups: tuple[TrajectoryGroup, ...] | None = None) -> m.Batch:
    groups = make_groups(step) if groups is None else groups
    return m.Batch(
        step=step,
        ids=tuple(tuple(f"t/{g.ordinal}/{t.sample}" for t in g.trajectories) for g in groups),
        groups=groups,
        cursor=m.Cursor(next_ordinal=step * PROMPTS),
    )


@dataclass
class MemoryCoordinator:
    """Commits, anchors and forks by the rules of the protocol; batches come from ``make``."""

    steps_max: int
    make: Callable[[int], m.Batch] = make_batch
    lineage: int = 0
    incarnation: int = 0
    caller: int = 0
    initial: WeightVersion | None = None
    initial_chain: str = ""
    records: dict[int, m.StepRecord] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    anchors: list[m.AnchorManifest] = field(default_factory=list)
    forks: list[m.Fork] = field(default_factory=list)

    @property
    def committed(self) -> int:
        return max(self.records, default=0)

    def chain(self, step: int | None = None) -> str:
        return self.records[step or self.committed].chain

    def as_worker(self, worker: str, incarnation: int = 0) -> Any:
        from routed_calls import RoutedCalls

        return RoutedCalls(self, incarnation)

    def called_by(self, incarnation: int) -> None:
        self.caller = incarnation

    def start(self, ask: m.LearnerStart) -> m.LearnerStarted:
        self.incarnation += 1
        anchor = max(self.anchors, key=lambda a: (a.lineage, a.step), default=None)
        after = 0 if anchor is None else anchor.step
        return m.LearnerStarted(
            incarnation=self.incarnation,
            lineage=self.lineage,
            committed_step=self.committed,
            chain=self.records[self.committed].chain if self.records else self.initial_chain,
            anchor=anchor,
            replay=tuple(self.records[s] for s in sorted(self.records) if s > after),
            initial=self.initial,
            heartbeat_seconds=1.0,
        )

    def publish_initial(self, ask: m.PublishInitial) -> m.Empty:
        assert self.initial in (None, ask.version)
        self.initial, self.initial_chain = ask.version, ask.chain
        return m.Empty()

    def batch(self, ask: m.BatchRequest) -> m.Batch:
        assert self.initial is not None, "nobody samples before the first version is announced"
        if ask.step > self.steps_max:
            return m.Batch(step=ask.step, stop="Succeeded")
        if ask.told_seconds is not None:
            return m.Batch(step=ask.step, stop="Preempted", save_seconds=ask.told_seconds)
        return self.make(ask.step)

    def replay(self, ask: m.ReplayRequest) -> m.Batch:
        return self.make(ask.step)

    def commit(self, ask: m.Commit) -> m.Committed:
        if self.caller != self.incarnation:
            raise CoordinatorError("an older incarnation")
        assert ask.step == self.committed + 1
        names = m.StepRecord.__struct_fields__
        # The plan goes through the wire's format, as it does in a ledger.
        fields = {name: getattr(ask, name) for name in names}
        fields["plan"] = msgspec.msgpack.decode(msgspec.msgpack.encode(ask.plan))
        self.records[ask.step] = m.StepRecord(**fields)
        self.metrics.append(ask.metrics)
        return m.Committed(accepted=True)

    def anchor(self, ask: m.AnchorSaved) -> m.Empty:
        if ask.manifest not in self.anchors:
            self.anchors.append(ask.manifest)
        return m.Empty()

    def stored_again(self, ask: m.StoredAgain) -> m.Empty:
        version = ask.version
        record = self.records[version.step]
        assert version.digest == record.version.digest
        self.records[version.step] = msgspec.structs.replace(record, version=version)
        return m.Empty()

    def fork(self, ask: m.Fork) -> m.Forked:
        self.forks.append(ask)
        self.lineage += 1
        version = replace(ask.version, lineage=self.lineage)
        record = msgspec.structs.replace(
            self.records[ask.step], lineage=self.lineage, version=version, chain=ask.chain
        )
        self.records = {s: r for s, r in self.records.items() if s < ask.step}
        self.records[ask.step] = record
        return m.Forked(lineage=self.lineage)


@dataclass(frozen=True, kw_only=True)
class World:
    """Makes learners that share one store and one coordinator, as restarts of a process would."""

    folder: Path
    model_path: Path
    settings: LearnerSettings
    parallel: Parallel = ALONE
    watch: Watch = WATCH

    def parts(self, calls: Any, store: Any = None) -> LearnerContext:
        return LearnerContext(
            trainer=build_trainer(self.model_path, self.settings, self.parallel),
            session=Session(calls, "learner", self.parallel),
            place=AnchorPlace(
                store=store or FilesystemStore(self.folder / "objects"),
                snapshots_dir=self.folder / "snapshots",
            ),
            reference=build_reference(self.model_path, self.settings, self.parallel),
            renderer=build_renderer(self.model_path, "plain"),
            identity=runtime_identity(
                world_size=self.parallel.world_size, device=self.parallel.device
            ),
        )

    def run(self, calls: Any, store: Any = None) -> LearnerContext:
        """One incarnation, from start to the coordinator's stop."""
        parts = self.parts(calls, store)
        run_learner(parts, parts.session.start(1, "here"), self.watch)
        return parts


@pytest.fixture
def world(tmp_path: Path, model_path: Path, settings: LearnerSettings) -> World:
    return World(folder=tmp_path, model_path=model_path, settings=settings)


@pytest.fixture
def coordinator() -> type[MemoryCoordinator]:
    return MemoryCoordinator


@pytest.fixture
def groups_of() -> Callable[..., tuple[TrajectoryGroup, ...]]:
    return make_groups


@pytest.fixture
def batch_of() -> Callable[..., m.Batch]:
    return make_batch
