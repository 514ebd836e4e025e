"""The learner against the real coordinator and ledger, in one process: run, kill, restart, compare."""

from __future__ import annotations

import json
import random
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from plans import changed, run_plan

from rollout.algorithms.advantages.overlong import OverlongPenalty
from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.ipo import IpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.preference.orpo import OrpoSettings
from rollout.algorithms.preference.reward_model import RewardModelSettings
from rollout.algorithms.preference.simpo import SimpoSettings
from rollout.coordinator.dispatcher import open_coordinator
from rollout.coordinator.plan import RunPlan
from rollout.coordinator.server.in_process import serve_in_process
from rollout.errors import RolloutError
from rollout.learner.config.policy import RewardKl
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.config.sft import SftSettings
from rollout.ledger.records import RunIdentity
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.types import SamplingParams, Trajectory, VersionSpan

STEPS = 7
PLAN = run_plan(
    name="r",
    uid="u",
    tasks_per_step=3,
    num_samples=4,
    sampling=SamplingParams(max_new_tokens=4),
    steps_max=STEPS,
    lease_seconds=5.0,
    heartbeat_seconds=0.5,
)


class Killed(BaseException):
    """Stands for SIGKILL."""


class Rows:
    def train(self, ordinals):
        return [_row(n) for n in ordinals]

    def evaluation(self, name, split, positions):
        return []


def _row(n: int) -> dict:
    said = "a" * (n % 5) + "="
    messages = [{"role": "user", "content": f"{n}+{n}{said}"}]
    return {
        "messages": messages,
        "answer": str(2 * n),
        "chosen": str(2 * n),
        "rejected": f"{2 * n + 1}!" + "?" * (n % 3),
        "margin": n % 2,
        "label": n % 3 > 0,
    }


def make_trajectory(task: m.Task, sample: int) -> Trajectory:
    draw = random.Random(task.ordinal * 100 + sample)
    length = draw.randint(1, 4)
    reward = float(draw.random() < 0.5)
    version = task.version
    return Trajectory(
        ordinal=task.ordinal,
        sample=sample,
        prompt_ids=(1, 2, 3 + task.ordinal),
        token_ids=tuple(draw.randrange(250) for _ in range(length)),
        actor_logprobs=(-5.5,) * length,
        loss_mask=(1,) * length,
        spans=(VersionSpan(start=0, end=length, lineage=version.lineage, step=version.step),),
        rewards={"r": reward},
        reward=reward,
        ending="stop",
    )


def act(client: CoordinatorClient, over: threading.Event) -> None:
    """Answer every task until told to stop."""
    client = client.as_worker("actor-0")
    client = client.as_worker("actor-0", client.call(routes.REGISTER, m.Register()).incarnation)
    while not over.is_set():
        ask = m.Claim(tasks_max=8, wait_seconds=0.1)
        try:
            claimed = client.call(routes.CLAIM, ask)
            results = tuple(
                m.TaskResult(
                    task_id=task.task_id,
                    epoch=task.epoch,
                    trajectories=tuple(make_trajectory(task, s) for s in range(task.num_samples)),
                )
                for task in claimed.tasks
            )
            if results:
                client.call(routes.SUBMIT, m.Submit(results=results))
        except RolloutError:
            return
        if claimed.stop:
            return


@contextmanager
def coordinator(folder: Path, plan: RunPlan):
    """One coordinator life, with an actor unless the plan is offline."""
    (folder / "snapshots").mkdir(parents=True, exist_ok=True)
    identity = RunIdentity(uid="u", name="r", spec_digest="blake3:" + "0" * 64)

    async def opened():
        return await open_coordinator(
            plan,
            SqliteLedger(folder / "ledger.db", identity),
            FilesystemStore(folder / "objects"),
            Rows(),
            snapshots=folder / "snapshots",
            summarise=lambda _: {},
        )

    over = threading.Event()
    with serve_in_process(opened) as client:
        actor = threading.Thread(target=act, args=(client, over), daemon=True)
        if not plan.train.offline:
            actor.start()
        try:
            yield client
        finally:
            over.set()
            if actor.is_alive():
                actor.join(60)


class DiesAt:
    """A client whose n-th commit, or the answer to it, never gets through."""

    def __init__(self, client: CoordinatorClient, step: int, *, after: bool) -> None:
        self._client, self._step, self._after = client, step, after

    def as_worker(self, worker: str, incarnation: int = 0) -> DiesAt:
        client = self._client.as_worker(worker, incarnation)
        return DiesAt(client, self._step, after=self._after)

    def call(self, route, ask):
        dies = route is routes.COMMIT and ask.step == self._step
        if dies and not self._after:
            raise Killed
        answer = self._client.call(route, ask)
        if dies:
            raise Killed
        return answer


def records(client: CoordinatorClient) -> tuple:
    """The whole chain, as a learner that lost everything would be given it."""
    status = client.status()
    return status.step, status.chain, status.lineage


@pytest.fixture
def sft(world):
    algorithm = SftSettings(loss="CompletionOnly", packing=True, max_length=16)
    return replace(world, settings=replace(world.settings, algorithm=algorithm))


@pytest.fixture
def ppo(world, ppo_settings):
    return replace(world, settings=replace(world.settings, algorithm=ppo_settings))


def disturbed(world, plan):
    """The same run with the learner killed three times and the coordinator restarted twice."""
    for step, after in ((2, False), (4, True), (5, False)):
        with coordinator(world.folder, plan) as client, pytest.raises(Killed):
            world.run(DiesAt(client, step, after=after))
    with coordinator(world.folder, plan) as client:
        world.run(client)
        return records(client)


@pytest.fixture
def reinforce(world, policy_settings):
    """Everything of the family that is computed before the first update."""
    algorithm = replace(
        policy_settings,
        advantage_baseline="None",
        advantage_scale="Whiten",
        reward_kl=RewardKl(coefficient=0.1, per_token=True),
        overlong=OverlongPenalty(limit=4, buffer=2),
        epochs=2,
    )
    return replace(world, settings=replace(world.settings, algorithm=algorithm))


@pytest.mark.parametrize("algorithm", ["grpo", "reinforce", "ppo", "sft"])
def test_kills_and_restarts_do_not_change_the_chain(world, reinforce, ppo, sft, algorithm) -> None:
    chosen = {"grpo": world, "reinforce": reinforce, "ppo": ppo, "sft": sft}[algorithm]
    plan = changed(PLAN, offline=algorithm == "sft")
    calm = replace(chosen, folder=world.folder / "calm")
    with coordinator(calm.folder, plan) as client:
        calm.run(client)
        expected = records(client)
    assert expected[0] == STEPS
    assert expected[1].startswith("blake3:")
    assert disturbed(chosen, plan) == expected


def dispositions(folder: Path) -> dict[str, int]:
    """How the samples of a run ended, from its ledger."""
    with LedgerReader(folder / "ledger.db") as ledger:
        return dict(ledger.dispositions())


@pytest.mark.parametrize("waves", [1, 3])
def test_dropped_and_refilled_groups_are_the_same_after_kills(world, waves) -> None:
    """Pairs of a coin each: half of the groups have no variance, are dropped, and refilled in order."""
    plan = changed(PLAN, num_samples=2, waves_max=waves)
    calm = replace(world, folder=world.folder / "calm")
    with coordinator(calm.folder, plan) as client:
        calm.run(client)
        expected = records(client)
    assert expected[0] == STEPS
    assert disturbed(world, plan) == expected
    ended = dispositions(calm.folder)
    assert dispositions(world.folder) == ended
    assert ended["filtered"] > 0
    assert ended["pending"] == 0
    # What a refill made too much; nothing is sampled for a step after the last.
    assert ("surplus" in ended) is (waves > 1)
    # One wave takes what it finds, about half; three nearly always fill the step.
    full = STEPS * plan.train.tasks_per_step * plan.train.num_samples
    assert ended["consumed"] > 0.9 * full if waves > 1 else ended["consumed"] < 0.7 * full


@pytest.mark.parametrize("samples", [1, 4])
def test_a_run_of_ten_steps_resumed_at_five_is_the_run(ppo, samples) -> None:
    """PPO: weights, critic, both optimizers and the KL coefficient, by their chain; samples need no siblings."""
    plan = changed(PLAN, steps_max=10, num_samples=samples)
    calm = replace(ppo, folder=ppo.folder / "calm")
    with coordinator(calm.folder, plan) as client:
        calm.run(client)
        expected = records(client)
    with coordinator(ppo.folder, changed(plan, steps_max=5)) as client:
        ppo.run(client)
    with coordinator(ppo.folder, plan) as client:
        resumed = ppo.run(client)
        assert records(client) == expected
    assert expected[0] == 10
    assert resumed.trainer.control.coefficient != 0.05


OFFLINE = {
    "sft": SftSettings(loss="CompletionOnly", packing=True, max_length=16, label_smoothing=0.1),
    "dpo": PairSettings(loss=DpoSettings(sft_coefficient=0.1), max_length=16),
    "ipo": PairSettings(loss=IpoSettings(beta=0.5), max_length=16),
    "orpo": PairSettings(loss=OrpoSettings(), max_length=16),
    "simpo": PairSettings(loss=SimpoSettings(), max_length=16),
    "kto": LabelSettings(loss=KtoSettings(), max_length=16),
    "rm": RewardSettings(
        loss=RewardModelSettings(centering_coefficient=0.01), max_length=16, seed=3
    ),
}


@pytest.mark.parametrize("algorithm", OFFLINE)
def test_a_run_on_rows_killed_at_step_five_of_ten_keeps_its_chain(world, algorithm) -> None:
    chosen = replace(world, settings=replace(world.settings, algorithm=OFFLINE[algorithm]))
    plan = changed(PLAN, offline=True, steps_max=10)
    calm = replace(chosen, folder=world.folder / "calm")
    with coordinator(calm.folder, plan) as client:
        calm.run(client)
        expected = records(client)
    with coordinator(chosen.folder, plan) as client, pytest.raises(Killed):
        chosen.run(DiesAt(client, 5, after=False))
    with coordinator(chosen.folder, plan) as client:
        chosen.run(client)
        assert records(client) == expected
    assert expected[0] == 10


def test_pairs_that_are_too_long_are_filtered_not_consumed(world) -> None:
    algorithm = PairSettings(loss=DpoSettings(), max_length=12)
    short = replace(world, settings=replace(world.settings, algorithm=algorithm))
    plan = changed(PLAN, offline=True, steps_max=4)
    with coordinator(short.folder, plan) as client:
        short.run(client)
        dispositions = client.status().dispositions
    assert dispositions["consumed"] + dispositions["filtered"] == 12
    assert 0 < dispositions["filtered"] < 12


def test_a_replay_that_differs_forks_once_and_goes_on(world) -> None:
    with coordinator(world.folder, changed(PLAN, steps_max=4)) as client:
        world.run(client)
    # The anchor of step 4 is lost, and the learner now computes something else.
    last = json.loads((world.folder / "snapshots" / "step-000004.json").read_text())
    FilesystemStore(world.folder / "objects").delete(last["objects"]["optimizer"])
    optimizer = replace(world.settings.optimizer, learning_rate=2e-3)
    other = replace(world, settings=replace(world.settings, optimizer=optimizer))
    with coordinator(world.folder, PLAN) as client:
        started = client.as_worker("probe").call(routes.START, m.LearnerStart())
        assert started.anchor is not None
        assert [record.step for record in started.replay] == [4]
        other.run(client)
        assert records(client)[::2] == (STEPS, 1)


def test_rows_cut_before_their_answer_are_filtered_not_consumed(sft) -> None:
    algorithm = SftSettings(loss="CompletionOnly", packing=True, max_length=8)
    short = replace(sft, settings=replace(sft.settings, algorithm=algorithm))
    plan = changed(PLAN, offline=True, steps_max=4)
    with coordinator(short.folder, plan) as client:
        short.run(client)
        dispositions = client.status().dispositions
    assert dispositions["consumed"] + dispositions["filtered"] == 12
    assert dispositions["filtered"] > 0
