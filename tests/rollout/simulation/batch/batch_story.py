"""One inference run in virtual time, and what befalls it: ``python tests/rollout/simulation/batch/batch_story.py 17 18-40``.

The real coordinator, ledger, data, order and writer of results; a seed decides the rows' fate and every delay. Whatever
happens, the files of results are byte for byte those of the undisturbed run, and the ledger holds no row twice.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2] / "ledger"))
sys.path.append(str(Path(__file__).parents[2] / "coordinator"))

import batch_workers
from plans import run_plan
from promises import check_always
from scenario import POWER, TRIES, Fault, Scenario
from simulate import Story, memory, quiet
from virtual_time import Stuck, heed_end, run_virtual
from world import World

from rollout.coordinator.batch_run import BATCH, BatchRows
from rollout.coordinator.duties.batch_results import ERRORS, BatchWriter
from rollout.coordinator.plan import EvaluationPlan, InferPlan, RunPlan
from rollout.data.batch import open_batch
from rollout.errors import StoreError
from rollout.types import SamplingParams
from rollout_api.v1alpha1.inference.infer import Infer

NUM_ROWS, SAMPLES = 30, 2
NEW_TOKENS = 8
BROKEN_LINE, LOST_LINE, TWICE_LINE = 7, 11, 19
IN_RESULTS, NO_PLACE = "kill-in-results", "lose-results-place"
KINDS = (
    "kill-actor",
    "kill-actor",
    "freeze-actor",
    "replace-actor",
    "leave-actor",
    "lose-actor",
    "kill-learner",
    "kill-coordinator",
    "close-coordinator",
    "lose-acknowledgement",
    "lose-acknowledgement",
    "skew-ledger-clock",
    "wrong-weights",
    "bad-network",
    POWER,
    IN_RESULTS,
    NO_PLACE,
)
"""What may befall a batch: every process at any point, an answer lost after a commit, a writer between its renames, its
place."""
BUSY_SECONDS = 25.0
"""Within which most runs are over; what is drawn for later meets nobody."""


def write_rows(path: Path) -> None:
    """Lines of both forms and unequal lengths: one broken, one that nobody can draw, one id twice."""
    lines = [json.dumps(_line(number)) for number in range(NUM_ROWS)]
    lines[BROKEN_LINE] = "{broken"
    path.write_text("\n".join(lines) + "\n")


def _line(number: int) -> dict[str, Any]:
    if number == LOST_LINE:
        return {"prompt": f"{number} {batch_workers.LOST}"}
    if number % 3:
        return {"prompt": f"question {number} " + "long " * (number % 5 * 40), "id": number}
    said = {"max_tokens": 1 + number % NEW_TOKENS, "n": SAMPLES}
    text = number % 2 == 1
    asked = {"prompt": f"say {number}"} if text else {"messages": _user(f"say {number}")}
    twice = number in {TWICE_LINE - 1, TWICE_LINE + 2}
    return {
        "custom_id": "twice" if twice else f"row-{number}",
        "method": "POST",
        "url": "/v1/completions" if text else "/v1/chat/completions",
        "body": {**asked, **said},
    }


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def build_scenario(seed: int) -> Scenario:
    """Everything that a seed decides before the run begins."""
    draw = random.Random(f"batch {seed}")
    num_actors = draw.randint(1, 3)
    lease = draw.choice([6.0, 10.0])
    faults = [
        Fault(
            at=draw.uniform(0.1, BUSY_SECONDS),
            kind=draw.choice(KINDS),
            who=draw.randrange(num_actors),
            seconds=draw.choice([draw.uniform(0.2, 5.0), draw.uniform(5.0, 30.0)]),
        )
        for _ in range(draw.randint(2, 8))
    ]
    return Scenario(
        seed=seed,
        plan=_plan(lease),
        num_actors=num_actors,
        tasks_max=draw.choice([1, 2, 4]),
        slowness=draw.uniform(2.0, 12.0),
        network=draw.choice([0.0, 0.02, 0.1]),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _plan(lease: float) -> RunPlan:
    sampling = SamplingParams(max_new_tokens=NEW_TOKENS)
    rows = EvaluationPlan(
        name=BATCH[0],
        split=BATCH[1],
        num_prompts=0,
        samples_per_prompt=SAMPLES,
        sampling=sampling,
        at_start=True,
        at_end=False,
    )
    return run_plan(
        name="simulated",
        uid="uid-1",
        trains=False,
        tasks_per_step=1,
        num_samples=1,
        sampling=sampling,
        offline=True,
        steps_max=0,
        attempts_max=TRIES,
        exact=True,
        evaluations=(rows,),
        infer=InferPlan(num_rows=NUM_ROWS, num_refused=0, failed_ratio_max=0.5),
        lease_seconds=lease,
        heartbeat_seconds=lease / 3,
    )


class DyingWriter:
    """The real writer of results; told so, the coordinator dies in it before, between or behind its renames."""

    def __init__(self, world: World, writer: BatchWriter) -> None:
        self._world, self._writer = world, writer
        self.dies_at: list[int] = []
        self.refusals = 0

    def __call__(self) -> Any:
        if self.refusals:
            self.refusals -= 1
            self._world.count("results refused by their place")
            raise StoreError("the bucket of results is away")
        left = self.dies_at.pop() if self.dies_at else None
        renames, rename = iter(range(9)), Path.replace

        def replace_or_die(path: Path, target: Path) -> Path:
            if next(renames) == left:
                self._die()
            return rename(path, target)

        with patch.object(Path, "replace", replace_or_die):
            counts = self._writer()
        if left is not None:
            self._die()
        return counts

    def _die(self) -> None:
        self._world.say("coordinator killed while it writes results")
        self._world.count("killed while results were written")
        self._world.down_seconds = 0.5
        self._world.kill_coordinator()
        raise asyncio.CancelledError


class BatchStory(Story):
    """An inference run from start to end."""

    ending = "Finished"

    def mains(self) -> Any:
        world = self._world
        yield "learner", lambda process: batch_workers.publish(world, process)
        for index in range(self._scenario.num_actors):
            yield (
                f"actor-{index}",
                lambda process, index=index: batch_workers.act(world, process, index),
            )

    def trouble_the_parts(self, fault: Fault) -> None:
        if fault.kind == IN_RESULTS:
            self._world.results.dies_at.append(fault.who % 3)
        elif fault.kind == NO_PLACE:
            self._world.results.refusals += 1 + fault.who
        else:
            super().trouble_the_parts(fault)

    def judge(self) -> None:
        world = self._world
        if world.violations:
            return
        for text in check_always(world.folder / "ledger.db", self._scenario, world.lives):
            world.break_promise(text)
        if world.outcome != self.ending:
            world.break_promise(f"the run ended as {world.outcome!r}: {world.status().outcome}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What came of one run. ``files``: the results by name."""

    scenario: Scenario
    files: dict[str, bytes]
    broken: tuple[str, ...]
    trace: tuple[str, ...]
    virtual_seconds: float
    counts: dict[str, int]

    def explain(self) -> str:
        """What happened, for people."""
        again = f"again: python tests/rollout/simulation/batch/batch_story.py {self.scenario.seed}"
        broken = [f"BROKEN: {text}" for text in self.broken]
        return "\n".join([self.scenario.describe(), *self.trace[-300:], *broken, again])


def run_batch(scenario: Scenario) -> BatchReport:
    """One run in virtual time."""
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(dir=memory()))
        stack.enter_context(quiet())
        folder, draw = Path(name), random.Random(f"run {scenario.seed}")
        world = build_world(scenario, folder, draw)
        ended, found = [0.0], []
        random.seed(scenario.seed)

        async def live() -> None:
            loop = asyncio.get_running_loop()
            with patch("time.monotonic", loop.time):
                try:
                    await BatchStory(world).tell()
                finally:
                    ended[0] = world.now

        stack.enter_context(patch("rollout.entrypoints.actor.heed_end", heed_end))
        stack.enter_context(patch("os.fsync", world.disk.fsync))
        try:
            run_virtual(live, draw)
        except Stuck as error:
            found.append(str(error))
        found += [str(one) for one in world.violations]
        found += _twice(folder / "ledger.db")
        results = folder / "results"
        return BatchReport(
            scenario=scenario,
            files={one.name: one.read_bytes() for one in sorted(results.glob("*"))},
            broken=tuple(dict.fromkeys(found)),
            trace=tuple(world.trace),
            virtual_seconds=ended[0],
            counts=dict(world.counts),
        )


def build_world(scenario: Scenario, folder: Path, draw: random.Random) -> World:
    """The world of a run over the rows of ``write_rows``."""
    path = folder / "rows.jsonl"
    write_rows(path)
    document = {"data": {"jsonl": {"uri": str(path)}}, "samplesPerPrompt": SAMPLES}
    document["sampling"] = {"maxNewTokens": NEW_TOKENS}
    infer = Infer.model_validate(document)
    source = open_batch(infer)
    rows = BatchRows(source=source, asked=list(source.order()), refused=source.refused)
    plan = scenario.plan
    evaluation = replace(plan.evaluations[0], num_prompts=len(rows.asked))
    world = World(replace(scenario, plan=replace(plan, evaluations=(evaluation,))), folder, draw)
    world.rows = rows
    config: Any = SimpleNamespace(
        layout=SimpleNamespace(ledger_path=str(folder / "ledger.db")),
        run=SimpleNamespace(uid=plan.uid),
        spec=SimpleNamespace(storage=None, infer=infer),
    )
    writer = BatchWriter(config=config, rows=rows, folder=folder / "results", logprobs=True)
    world.results = DyingWriter(world, writer)
    return world


def _twice(ledger: Path) -> list[str]:
    """Samples that the ledger holds twice, by its own tables."""
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as tx:
        rows = tx.execute("SELECT task_id, sample FROM trajectories").fetchall()
    return [
        f"{key} is in the ledger {number} times"
        for key, number in Counter(rows).items()
        if number > 1
    ]


def simulate_batch(seed: int) -> BatchReport:
    """One schedule, held against the undisturbed run."""
    scenario = build_scenario(seed)
    report = run_batch(scenario)
    if report.broken or report.files == undisturbed():
        return report
    names = [name for name, data in undisturbed().items() if report.files.get(name) != data]
    left = sorted(report.files.keys() - undisturbed().keys())
    text = f"not the undisturbed run's files: {names}, left over: {left}"
    return replace(report, broken=(text,))


_CALM: dict[str, bytes] = {}


def undisturbed() -> dict[str, bytes]:
    """The files of a run that nothing befalls; equal for all seeds."""
    if not _CALM:
        calm = run_batch(replace(build_scenario(0).calm(), num_actors=1, tasks_max=4))
        assert not calm.broken, calm.explain()
        assert set(calm.files) == {"results.jsonl", ERRORS}
        _CALM.update(calm.files)
    return dict(_CALM)


def main(arguments: list[str]) -> int:
    """Run the seeds that are asked for; 1 when one of them broke a promise."""
    bad = 0
    for argument in arguments:
        first, _, last = argument.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            report = simulate_batch(seed)
            bad += bool(report.broken)
            if report.broken or (len(arguments) == 1 and not last):
                print(report.explain())
            word = "BROKEN" if report.broken else "kept"
            print(f"seed {seed}: {word} after {report.virtual_seconds:.0f} virtual s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
