"""``make bench TARGET=endurance`` measures a ledger that no run wrote: its rows are those of a run."""

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest
from coordinator_kit import Rows, accuracy

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import endurance_ledger as made
from fake_run import GROUPS, IDENTITY, SAMPLES, build_plan

from rollout.coordinator.dispatcher import open_coordinator
from rollout.coordinator.server.in_process import serve_in_process
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol import messages as m
from rollout.protocol import routes

STEPS = 3
TABLES = [
    "lineages",
    "workers",
    "tasks",
    "attempts",
    "trajectories",
    "bodies",
    "versions",
    "steps",
    "dispositions",
    "evaluations",
    "anchors",
    "events",
    "prefixes",
    "tallies",
    "lives",
    "memory",
]
ITS_OWN = {"versions": {"retired"}, "workers": {"pid", "host"}, "lineages": {"created_at"}}
"""When a coordinator retires a version, and when a file was made, depends on time; the rest says which process it was."""


def still() -> float:
    return made.BEGAN


def run_for_real(folder: Path) -> None:
    """The same steps, told to a coordinator."""
    store = FilesystemStore(folder / "objects")

    async def opened():
        ledger = SqliteLedger(folder / "ledger.db", IDENTITY, clock=still)
        return await open_coordinator(
            build_plan(GROUPS, SAMPLES), ledger, store, Rows(), snapshots=folder, summarise=accuracy
        )

    with serve_in_process(opened) as client:
        client_of = {}
        for name, route, ask in (
            ("actor-0", routes.REGISTER, m.Register()),
            ("learner", routes.START, m.LearnerStart()),
        ):
            incarnation = client.as_worker(name).call(route, ask).incarnation
            client_of[name] = client.as_worker(name, incarnation)
        actor, learner = client_of["actor-0"], client_of["learner"]
        weights = store.put(made.OBJECT)
        first = m.PublishInitial(version=made.name_version(0, weights))
        learner.call(routes.PUBLISH_INITIAL, first)
        for step in range(1, STEPS + 1):
            _take_step(actor, learner, step, weights)


def _take_step(actor, learner, step, weights) -> None:
    tasks = actor.call(routes.CLAIM, m.Claim(tasks_max=GROUPS)).tasks
    results = tuple(
        m.TaskResult(
            task_id=task.task_id,
            epoch=task.epoch,
            trajectories=made.draw_trajectories(task.ordinal, task.version.step),
        )
        for task in tasks
    )
    assert all(actor.call(routes.SUBMIT, m.Submit(results=results)).accepted)
    batch = learner.call(routes.BATCH, m.BatchRequest(step=step))
    commit = m.Commit(
        step=step,
        lineage=0,
        consumed=tuple(name for group in batch.ids for name in group),
        plan={},
        version=made.name_version(step, weights),
        chain=made.name_chain(step),
        cursor=batch.cursor,
        metrics=made.METRICS,
        phase_seconds={"train": 0.01},
    )
    assert learner.call(routes.COMMIT, commit).accepted


def read_rows(path: Path, table: str) -> tuple[list[str], list[tuple]]:
    with sqlite3.connect(path) as connection:
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        kept = [name for name in names if name not in ITS_OWN.get(table, ())]
        rows = connection.execute(f"SELECT {', '.join(kept)} FROM {table}").fetchall()
    return kept, sorted(rows, key=repr)


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    """The file of a run, and that of the builder."""
    real, built = (tmp_path_factory.mktemp(name) for name in ("real", "built"))
    run_for_real(real)
    asyncio.run(made.write_run(built, STEPS, still))
    return real / "ledger.db", built / "ledger.db"


@pytest.mark.parametrize("table", TABLES)
def test_the_rows_are_those_of_a_run(ledgers, table):
    real, built = (read_rows(path, table) for path in ledgers)
    assert built == real


def test_every_table_is_compared(ledgers):
    with sqlite3.connect(ledgers[0]) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    assert {name for (name,) in names} == {*TABLES, "run", "sqlite_stat1"}
