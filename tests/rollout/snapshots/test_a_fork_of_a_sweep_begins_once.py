"""Forks of a sweep on one machine: what takes a loser's place is decided, saved and begun once, whatever was killed between."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from restore_kit import SPEC, config_at, write_config
from snapshot_kit import make_run

from rollout.cli.main import main
from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.catalogue import list_catalogue
from rollout.runs.snapshots.places import WhereToLook
from rollout.supervisor.sweeps.book import Entry, ForkedFrom, Sweep, exit_code_of, write_state
from rollout.supervisor.sweeps.forking import (
    Forking,
    awaits_snapshot,
    build_fork,
    plan_forks,
    read_forks,
    require_forkable,
)
from rollout.supervisor.sweeps.halving import Halving, PointsComparer
from rollout.supervisor.sweeps.points import Grid, parse_axis, place_document, plan_points
from rollout.supervisor.sweeps.running import choose_next, gather
from rollout_api.sweeps.halving import HalvingRule

RATE = "train.optimizer.adamw.learningRate"
HALVING = Halving(rule=HalvingRule(first_step=2, factor=3, min_runs=3), metric="RewardMean")
FORK = "tiny-sweep-f001"


class World:
    """A sweep over three rates, of which the runs that a test wants have begun."""

    def __init__(self, home: Path, over: str = f"{RATE}=1e-5,1e-4,1e-3", forks: int = 2) -> None:
        head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
        data = {**head, "metadata": {"name": "tiny"}, "spec": SPEC}
        document, axes = Document(source="tiny.yaml", data=data, lines={}), [parse_axis(over)]
        self.points = plan_points(document, axes)
        self.said: list[str] = []
        self.sweep = Sweep(
            folder=home / "tiny-sweep",
            home=home,
            parallel=3,
            tell=self.said.append,
            halving=HALVING,
            grid=Grid(base=place_document(document), axes=tuple(axes)),
            forks_max=forks,
        )
        self.sweep.folder.mkdir(parents=True, exist_ok=True)
        self.entries = [Entry(point=point) for point in self.points]

    def begin(self, made: Path) -> World:
        """All points run; the further behind they stand, the better they are."""
        for place, entry in enumerate(self.entries):
            entry.state, entry.run = "running", self.make(entry, made)
            line = json.dumps({"step": 3, "reward": place / 10})
            (entry.run.path / "metrics.jsonl").write_text(f"{line}\n")
        return self

    def make(self, entry: Entry, made: Path) -> RunDir:
        folder = self.sweep.home / f"{entry.point.name}-1"
        shutil.copytree(made, folder)
        spec = prepare_run(entry.point.document).spec
        write_config(config_at(folder).model_copy(update={"spec": spec}))
        return RunDir(path=folder)

    def lose(self) -> list[Entry]:
        """The losers, and their forks in the book."""
        comparer = PointsComparer(HALVING)
        runs = {one.point.name: one.run for one in self.entries if one.run is not None}
        losers = comparer.look(runs, runs)
        for lost in losers:
            entry = next(one for one in self.entries if one.point.name == lost.name)
            entry.state, entry.message = "stopped", lost.explain()
        forks = plan_forks(self.sweep, self.entries, losers, comparer)
        self.entries += forks
        write_state(self.sweep, self.entries)
        return forks

    def save(self) -> None:
        Forking().save(self.sweep, self.entries)
        write_state(self.sweep, self.entries)

    def again(self) -> tuple[list[Entry], dict[str, str]]:
        """What the next life finds."""
        return gather(self.sweep, self.points)

    @property
    def labels(self) -> list[str]:
        winner = str(self.entries[2].run.path / "objects")
        found = list_catalogue(WhereToLook(object_path=winner)).found
        return sorted(one.manifest.header.label for one in found)


@pytest.fixture(autouse=True)
def own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run that each of the worlds has copies of."""
    folder = tmp_path_factory.mktemp("made") / "run"
    asyncio.run(make_run(folder))
    return folder


@pytest.fixture
def world(tmp_path, made) -> World:
    return World(tmp_path / "runs", forks=1).begin(made)


def test_forks_of_the_best_at_the_losers_rung_take_their_places(tmp_path, made):
    world = World(tmp_path / "runs").begin(made)
    first, second = world.lose()
    assert [one.state for one in world.entries[:3]] == ["stopped", "stopped", "running"]
    assert (first.point.name, second.point.name) == (FORK, "tiny-sweep-f002")
    for one in (first, second):
        assert one.forked_from.name == world.points[2].name
        assert one.forked_from.step == 3
        assert one.point.settings == {RATE: 1e-4}


def test_no_more_are_forked_than_the_sweep_says(world):
    assert [one.point.name for one in world.lose()] == [FORK]
    assert plan_forks(world.sweep, world.entries, [], PointsComparer(HALVING)) == []


def test_without_forks_nothing_takes_a_losers_place(world):
    world.sweep = replace(world.sweep, forks_max=0)
    assert world.lose() == []


def test_a_fork_begins_with_a_snapshot_that_is_taken_once(world):
    [fork] = world.lose()
    bare = replace(fork.forked_from)
    world.save()
    assert not awaits_snapshot(fork)
    wanted = fork.point.document.data["spec"]["restoreFrom"]["object"]
    assert wanted == {"uri": fork.forked_from.uri, "digest": fork.forked_from.digest}
    assert wanted["uri"].startswith("file:///")
    assert world.labels == [FORK]
    taken, fork.forked_from = fork.forked_from, bare  # killed before it was written down
    world.save()
    assert fork.forked_from == taken
    assert world.labels == [FORK]


def test_a_winner_that_has_saved_nothing_yet_is_waited_for_and_one_that_ended_is_not(
    tmp_path,
):
    bare = tmp_path / "bare"
    asyncio.run(make_run(bare, anchors=()))
    world = World(tmp_path / "runs", forks=1).begin(bare)
    [fork] = world.lose()
    world.save()
    assert (fork.state, awaits_snapshot(fork)) == ("waiting", True)
    world.entries[2].state = "finished"
    world.save()
    assert fork.state == "failed"
    assert "had ended before" in fork.message
    for entry in world.entries[:3]:
        entry.exit_code = 0
    assert exit_code_of(world.entries) == 0
    assert world.again()[0][3].state == "failed"


def test_places_of_losers_are_held_until_forks_can_begin(world):
    [fork] = world.lose()
    other = Entry(point=replace(world.points[0], name="other"))
    world.entries.append(other)
    one = replace(world.sweep, parallel=2)
    running = {world.points[2].name: (world.entries[2], None)}
    assert choose_next(one, world.entries, running) is None
    assert choose_next(one, world.entries, {}) is other  # nobody to wait for: it goes on
    world.save()
    assert choose_next(one, world.entries, running) is fork


def test_a_sweep_that_was_killed_goes_on_with_the_forks_it_had_decided(tmp_path, made, world):
    [fork] = world.lose()
    entries, resumed = world.again()
    assert [one.point.name for one in entries[3:]] == [FORK]
    assert awaits_snapshot(entries[3])
    assert FORK not in resumed

    world.save()
    entries, resumed = world.again()
    assert not awaits_snapshot(entries[3])
    assert (entries[3].state, FORK in resumed) == ("waiting", False)

    world.make(fork, made)
    entries, resumed = world.again()
    assert resumed[FORK] == f"{FORK}-1"

    (tmp_path / "runs" / f"{FORK}-1" / "result.json").write_text('{"exit_code": 0, "step": 5}')
    entries, resumed = world.again()
    assert (entries[3].state, entries[3].skipped) == ("finished", True)
    assert FORK not in resumed


def test_a_fork_of_a_run_that_the_sweep_has_no_more_is_left_out(world):
    world.lose()
    (world.entries[2].run.path / "worker.json").unlink()
    entries, _ = world.again()
    assert len(entries) == 3


def test_a_run_that_began_with_another_snapshot_is_not_the_forks(made, world):
    [fork] = world.lose()
    world.save()
    known = fork.forked_from.digest.removeprefix("blake3:")
    uri = fork.forked_from.uri.replace(known, "a" * 64)
    another = replace(fork.forked_from, uri=uri, digest="blake3:" + "a" * 64)
    other = Entry(point=build_fork(world.sweep.grid, FORK, fork.point.settings, another))
    world.make(other, made)
    _, resumed = world.again()
    assert FORK not in resumed


@pytest.mark.parametrize(
    "damage",
    [
        {"name": "../../etc"},
        {"name": "tiny-sweep-000"},
        {"forked_from": {"name": "x"}},
        {"forked_from": 7},
        {"settings": 7},
    ],
)
def test_a_book_with_damaged_forks_is_named(world, damage):
    world.lose()
    path = world.sweep.folder / "sweep.json"
    book = json.loads(path.read_text())
    book["points"][3] |= damage
    path.write_text(json.dumps(book))
    with pytest.raises(SpecError, match=r"sweep.json cannot be read"):
        read_forks(world.sweep)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("seed=0,1,2", "nothing swept is of what a begun run may change"),
        ("train.algorithm.grpo.groupSize=2,4,8", "nothing swept is of what a begun run may change"),
    ],
)
def test_forks_that_would_be_their_winners_are_refused(tmp_path, over, words):
    world = World(tmp_path, over=over)
    with pytest.raises(SpecError, match=words):
        require_forkable(world.sweep, world.points)


def test_a_sweep_whose_name_no_fork_can_have_is_refused(tmp_path):
    world = World(tmp_path)
    named = replace(world.sweep, folder=tmp_path / ("x" * 80))
    with pytest.raises(SpecError, match=r"metadata.name"):
        require_forkable(named, world.points)


def test_forks_without_losers_are_refused_by_name(tmp_path, monkeypatch, capsys):
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    data = {**head, "metadata": {"name": "tiny"}, "spec": SPEC}
    (tmp_path / "tiny.json").write_text(json.dumps(data))
    command = ["rollout", "sweep", "-f", str(tmp_path / "tiny.json"), "--over", f"{RATE}=1e-4,1e-3"]
    monkeypatch.setattr(sys, "argv", [*command, "--dry-run", "--forks", "2"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--forks 2" in capsys.readouterr().err


def test_the_book_tells_what_a_fork_began_from(tmp_path):
    world = World(tmp_path)
    begun = ForkedFrom(name="a", step=3, run_dir="/runs/a-1")
    told = Entry(point=world.points[0], forked_from=begun, step=4, value=0.5).describe()
    assert (told["forked_from"]["name"], told["forked_from"]["step"]) == ("a", 3)
    assert (told["step"], told["value"]) == (4, 0.5)
