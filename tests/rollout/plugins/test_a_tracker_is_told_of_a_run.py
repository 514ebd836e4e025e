"""A tracker that is a plugin: each step and the end are told at least once, whatever it does, and it holds up nobody."""

import json
import re
import sqlite3
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugin_kit import write
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import SpecError, StoreError
from rollout.plugins.sidecar.conformance.running import check_plugin
from rollout.plugins.sidecar.kinds import tracker
from rollout.plugins.sidecar.kinds.tracker import PluginTracker, TrackedRun, read_facts
from rollout.plugins.sidecar.lock import lock_folder, write_lock
from rollout.plugins.sidecar.manifest import folder_digest, read_plugin
from rollout.run_events import RunEnd
from rollout.tracking import telling
from rollout.tracking.build import build_trackers
from rollout.tracking.jsonl import JsonlTracker
from rollout.tracking.last_step import NOTHING
from rollout_api.checks import check_spec
from rollout_api.checks.facts import Facts
from rollout_api.v1alpha1.operations import Tracking
from rollout_api.v1alpha1.run import RolloutRunSpec

pytestmark = pytest.mark.process

DONE = RunEnd(kind="Succeeded", reason="Finished", message="3 steps committed")
KEEPS = """
    import json
    class Keeps:
        def __init__(self, path):
            self.path = path
        def track(self, facts):
            with open(self.path, "a") as file:
                for one in facts:
                    {fault}
                    said = one.end.kind if one.end else one.metrics
                    file.write(json.dumps([one.id, one.lineage, one.step, said]) + "\\n")
                    file.flush()
    serve(tracker=Keeps)
"""
BROKEN_ONCE = """
                    import os
                    if one.step == 1 and not os.path.exists(self.path + ".broken"):
                        open(self.path + ".broken", "w").close()
                        {fault}"""


def kept(folder, fault="pass", **more):
    body = KEEPS.format(fault=fault)
    return write(folder, body, kind="tracker", parameters=[{"name": "path"}], **more)


def run_in(folder, attempt=1):
    return TrackedRun(uid="uid-1", name="demo", attempt=attempt, metrics=folder / "metrics.jsonl")


def log_steps(folder, places):
    """As a coordinator writes them: the run's own file first."""
    own = JsonlTracker(folder / "metrics.jsonl")
    for lineage, step in places:
        own.log(step, {"lineage": lineage, "reward": float("nan") if step == 2 else step / 2})
    own.close()


def opened(folder, plugin, attempt=1):
    path = str(folder / "told.jsonl")
    return PluginTracker(read_plugin(plugin), {"path": path}, run_in(folder, attempt))


def told(folder):
    path = folder / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def patient(monkeypatch):
    """The end waits for as long as telling takes; tries come at once."""
    monkeypatch.setattr(telling, "CLOSE_SECONDS", 120.0)
    monkeypatch.setattr(tracker, "TELL_SECONDS", 60.0)
    monkeypatch.setattr(telling, "PAUSE_SECONDS_MAX", 0.01)


PLACES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=12)


@given(places=PLACES, facts_max=st.integers(1, 3), read=st.integers(100, 400), tail=st.binary())
def test_every_step_of_the_file_is_read_once_and_in_order(
    places, facts_max, read, tail, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("run")
    log_steps(folder, places)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"{" + tail.replace(b"\n", b""))  # a kill left it
    wanted = [(one["lineage"], one["step"]) for one in _lines(folder)]
    found, offset, last = [], 0, NOTHING
    with pytest.MonkeyPatch.context() as bounds:
        bounds.setattr(tracker, "FACTS_MAX", facts_max)
        bounds.setattr(tracker, "READ_BYTES", read)
        for _ in range(len(wanted) + 1):
            batch = read_facts(run_in(folder), offset, last)
            assert len(batch.facts) <= facts_max
            found += [(one.lineage, one.step) for one in batch.facts]
            offset, last = batch.offset, batch.last

    assert found == wanted == sorted(set(wanted))


def _lines(folder):
    text = (folder / "metrics.jsonl").read_text(errors="replace")
    return [json.loads(line) for line in text.split("\n")[:-1]]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"step": "x"}', "x" * 300])
def test_what_is_no_file_of_metrics_is_named_with_its_place(line, tmp_path, monkeypatch):
    monkeypatch.setattr(tracker, "READ_BYTES", 256)
    (tmp_path / "metrics.jsonl").write_text(line + "\n")

    with pytest.raises(StoreError, match=r"metrics\.jsonl.*byte 0"):
        read_facts(run_in(tmp_path), 0, NOTHING)


def test_steps_and_end_are_told_in_order_and_again_only_where_they_were_not_taken(
    tmp_path, patient
):
    plugin = kept(tmp_path / "plugin")
    log_steps(tmp_path, [(0, 0), (0, 1), (0, 2)])
    opened(tmp_path, plugin).close()  # a coordinator that was restarted
    log_steps(tmp_path, [(0, 0), (0, 1), (0, 2), (1, 2)])
    again = opened(tmp_path, plugin)
    again.log(2, {})
    again.close(DONE)

    assert [one[:3] for one in told(tmp_path)] == [
        *([f"uid-1/0/{step}", 0, step] for step in range(3)),
        ["uid-1/1/2", 1, 2],
        ["uid-1/end/1", 1, 2],
    ]
    assert told(tmp_path)[2][3] == {"lineage": 0, "step": 2, "reward": None}
    assert told(tmp_path)[-1][3] == "Succeeded"


FAULTS = {
    "dies": "os._exit(3)",
    "raises": "raise KeyError('shelf')",
    "floods": "print('x' * (5 << 20)); raise ValueError('y' * (1 << 20))",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_tracker_that_fails_at_a_fact_gets_it_again(name, tmp_path, patient):
    plugin = kept(tmp_path / "plugin", BROKEN_ONCE.format(fault=FAULTS[name]))
    log_steps(tmp_path, [(0, 0), (0, 1), (0, 2)])
    trying = opened(tmp_path, plugin)
    trying.close(DONE)

    wanted = [*(f"uid-1/0/{step}" for step in range(3)), "uid-1/end/1"]
    assert list(dict.fromkeys(one[0] for one in told(tmp_path))) == wanted


def test_a_tracker_that_hangs_holds_up_no_step_and_no_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tracker, "TELL_SECONDS", 0.2)
    monkeypatch.setattr(telling, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(telling, "PAUSE_SECONDS_MAX", 0.01)
    plugin = kept(tmp_path / "plugin", "import time; time.sleep(3600)")
    log_steps(tmp_path, [(0, 0), (0, 1)])
    hung = opened(tmp_path, plugin)
    for step in range(1000):
        hung.log(step, {})
    hung.close(DONE)
    hung.teller.thread.join()

    assert "up to step -1 of lineage 0; the rest waits in" in hung.trouble

    assert told(tmp_path) == []


def test_a_tracker_that_never_comes_up_is_told_and_stops_nothing(tmp_path, patient):
    plugin = kept(tmp_path / "plugin", version="9")
    (plugin / "plugin.py").write_text("raise SystemExit('no key')")
    log_steps(tmp_path, [(0, 0)])
    absent = opened(tmp_path, plugin)
    noted = threading.Event()
    monitor = absent.teller._note

    def note(error):
        monitor(error)
        if absent.trouble:
            noted.set()

    absent.teller._note = note
    noted.wait()
    assert re.search(r"ended before it served.*no key", absent.trouble)
    absent.close()


def test_a_plugin_of_another_contract_is_not_told(tmp_path, patient):
    plugin = kept(tmp_path / "plugin")
    text = (plugin / "plugin.py").read_text()
    (plugin / "plugin.py").write_text(
        "from dataclasses import replace\nimport msgspec\nimport rollout.plugins.serving as serving\n"
        "read = serving.read_plugin\n"
        "def later(folder):\n"
        "    found = read(folder)\n"
        "    return replace(found, manifest=msgspec.structs.replace(found.manifest, contract=2))\n"
        "serving.read_plugin = later\n" + text
    )
    found = list(check_plugin(plugin, {"path": str(tmp_path / "told.jsonl")}))

    assert [(one.name, one.has_passed) for one in found] == [("serves", False)]
    assert "its process says contract 2, plugin.yaml says 1" in found[0].why


def test_checks_name_a_tracker_that_takes_nothing_twice(tmp_path):
    body = """
        seen = set()
        def track(facts):
            for one in facts:
                if one.id in seen:
                    raise ValueError("it is there already")
                seen.add(one.id)
        serve(tracker=track)
    """
    folder = write(tmp_path / "plugin", body, kind="tracker")
    failed = {one.name for one in check_plugin(folder, {}) if not one.has_passed}

    assert "takes what it has again" in failed
    assert "takes a younger lineage" not in failed


RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "told"},
    "spec": {
        "model": {"uri": "rollout://tiny-agent"},
        "code": {"path": "code"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 1, "groupSize": 2}},
            "sampling": {"maxNewTokens": 2},
            "data": {"jsonl": {"uri": "rows.jsonl"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 2,
        },
        "tracking": [{"plugin": {"path": "rows"}}, {"plugin": {"path": "broken"}}],
    },
}


def problems(spec, platform):
    found = check_spec(RolloutRunSpec.model_validate(spec), Facts(platform=platform))
    return {(one.field, one.reason) for one in found}


def test_a_cluster_refuses_it_and_it_lies_in_the_runs_code():
    field = "spec.tracking[0].plugin"
    assert (field, "NotSupported") in problems(RUN["spec"], "cluster")
    without = {name: one for name, one in RUN["spec"].items() if name != "code"}
    assert (f"{field}.path", "MissingCode") in problems(without, "local")
    assert not problems(RUN["spec"], "local")


def test_one_of_another_kind_or_that_is_not_as_locked_opens_nothing(tmp_path):
    kept(tmp_path / "code" / "rows")
    write(tmp_path / "code" / "marks", "serve(reward=print)")

    def build(folder, **parameters):
        given = [{"name": name, "value": one} for name, one in parameters.items()]
        source = Tracking.model_validate({"plugin": {"path": folder, "parameters": given}})
        return build_trackers([source], tmp_path, name="demo", uid="u", folders=[tmp_path / "code"])

    with pytest.raises(
        SpecError, match=r"spec\.tracking\[0\]\.plugin: .* kind reward, not tracker"
    ):
        build("marks")
    with pytest.raises(SpecError, match="parameter 'path' is missing"):
        build("rows")
    write_lock(tmp_path / "code", lock_folder(tmp_path / "code"))
    (tmp_path / "code" / "rows" / "notes.txt").write_text("changed")
    with pytest.raises(SpecError, match="plugin rows: its files have changed"):
        build("rows", path="x")


@pytest.mark.usefixtures("warm_starts")
def test_a_run_is_told_and_one_tracker_that_breaks_fails_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called("plugins", "new", "code/rows", "--kind", "tracker")
    kept(tmp_path / "code" / "broken", "raise ValueError('full')")
    for one in RUN["spec"]["tracking"]:
        database = str(tmp_path / f"{one['plugin']['path']}.db")
        one["plugin"]["parameters"] = [{"name": "path", "value": database}]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n' * 2)
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    planned = json.loads(called("plan", "-f", "run.yaml", "--output", "json"))
    digests = planned["runs"][0]["resolved"]["pluginDigests"]
    assert digests["rows"] == folder_digest(tmp_path / "code" / "rows")
    called("run", "-f", "run.yaml", "--run-dir", "done")

    with sqlite3.connect(tmp_path / "rows.db") as rows:
        facts = rows.execute("SELECT run, told FROM facts ORDER BY rowid").fetchall()
    assert [json.loads(text) for _, text in facts[:-1]] == _lines(tmp_path / "done")
    assert facts[-1] == ("told", "Succeeded")


def called(*words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.stdout
