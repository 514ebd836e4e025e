"""In Exact, a run whose environments keep something ends with the chain and the memory of an undisturbed one, whatever dies."""

from __future__ import annotations

import json
import sqlite3

import pytest
from local_jobs import MANIFEST, is_named, members, start_job
from ruins import check_ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

STEPS, LEASE_SECONDS = 5, 4.0
REMEMBERING = (
    MANIFEST.partition("  evaluations:")[0]
    .replace(
        """environment: {builtin: {name: arithmetic, parameters: [{name: digits, value: "1"}]}}""",
        "environment: {python: {module: notes, className: Notes}}\n    data: {jsonl: {uri: rows.jsonl}}",
    )
    .replace("  train:\n", "  code: {path: .}\n  train:\n")
    .replace("promptsPerStep: 4, groupSize: 4", "promptsPerStep: 2, groupSize: 2")
    .replace("maxSteps: 12", f"maxSteps: {STEPS}")
)
NOTES = """
class Notes:
    uses_memory = True

    def __init__(self, row, memory):
        self.row, self.memory = row, memory

    def start(self):
        asked, last = self.row["prompt"], self.memory.get("last") or 0
        near = self.memory.search([1.0, last + 1.0], k=2)
        self.memory.put("last", (10 * last + ord(asked[0])) % 97)
        self.memory.put(asked, {"before": last}, [1.0, last + 2.0])
        return f"{asked}{last:02d}{len(near)}"

    def step(self, reply):
        self.memory.put("last", len(reply))
        return True
"""


@pytest.fixture
def place(tmp_path):
    """A folder with the environment and its rows."""
    (tmp_path / "notes.py").write_text(NOTES)
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def kept(job):
    """The whole memory, in its order."""
    with sqlite3.connect(f"file:{job.run_dir / 'ledger.db'}?mode=ro", uri=True) as ledger:
        return ledger.execute("SELECT * FROM memory ORDER BY step, ordinal, sample, key").fetchall()


def test_a_run_that_loses_its_actor_and_its_coordinator_keeps_the_same(place):
    undisturbed = start_job(place / "undisturbed", manifest=REMEMBERING)
    meant = undisturbed.finish()
    written = kept(undisturbed)
    assert meant["step"] == STEPS
    assert {row[1] for row in written} == set(range(1, STEPS + 1))
    assert len(written) == STEPS * 2 * 2 * 2

    job = start_job(place / "runs", manifest=REMEMBERING, lease_seconds=LEASE_SECONDS, steps_max=1)
    for step, role in ((1, "actor-0"), (3, "coordinator")):
        job.limit_steps(step)
        job.wait_until(lambda status, step=step: status.step >= step)
        job.kill(role)
    job.limit_steps()
    result = job.finish()

    assert "starting it again" in job.said()
    assert (result["chain"], result["dispositions"]) == (meant["chain"], meant["dispositions"])
    assert kept(job) == written
    check_ledger(job)


PLUGIN = """
contract: 2
name: notes
version: 1.0.0
kind: environment
command: [python, plugin.py]
"""
PLUGGED = REMEMBERING.replace(
    "{python: {module: notes, className: Notes}}", "{plugin: {path: notes}}"
)


def end_plugin(job):
    """Kill the plugin's process, and nothing else."""
    (actor,) = [one for one in members(job.run_dir) if is_named(one, "actor-0")]
    found = [one for one in actor.children(recursive=True) if "plugin.py" in one.cmdline()]
    assert found, [one.cmdline() for one in actor.children(recursive=True)]
    for one in found:
        one.kill()


AGENT = """
import json, os, sys, urllib.request

def post(path, body):
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + path
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as answer:
        return json.load(answer)

asked, last = sys.stdin.read(), post("/memory/get", {"key": "last"})["value"] or 0
near = post("/memory/search", {"vector": [1.0, last + 1.0], "k": 2})["hits"]
post("/memory/put", {"key": asked, "value": {"before": last}, "vector": [1.0, last + 2.0]})
post("/memory/put", {"key": "last", "value": (10 * last + ord(asked[0])) % 97})
said = [{"role": "user", "content": f"{asked}{last:02d}{len(near)}"}]
reply = post("/chat/completions", {"model": "policy", "messages": said})
post("/memory/put", {"key": "last", "value": len(reply["choices"][0]["message"]["content"])})
"""
OWNED = REMEMBERING.replace(
    "{python: {module: notes, className: Notes}}",
    "{agent: {command: [python3, clerk.py], files: [clerk.py], memory: true}}",
)


def check_disturbed(place, manifest, disturbances):
    """A run to which these happen, behind their steps, ends with chain and memory of one to which nothing does."""
    undisturbed = start_job(place / "undisturbed", manifest=manifest)
    meant = undisturbed.finish()
    written = kept(undisturbed)
    assert len(written) == STEPS * 2 * 2 * 2

    job = start_job(place / "runs", manifest=manifest, lease_seconds=LEASE_SECONDS, steps_max=1)
    for step, disturb in disturbances:
        job.limit_steps(step)
        job.wait_until(lambda status, step=step: status.step >= step)
        disturb(job)
    job.limit_steps()
    result = job.finish()

    assert (result["chain"], result["dispositions"]) == (meant["chain"], meant["dispositions"])
    assert kept(job) == written
    check_ledger(job)


@pytest.mark.slow
def test_a_run_of_a_plugin_that_is_killed_by_itself_and_with_its_actor_keeps_the_same(place):
    folder = place / "notes"
    folder.mkdir()
    (place / "notes.py").unlink()
    (folder / "plugin.yaml").write_text(PLUGIN)
    serves = "\nfrom rollout.plugins.serving import serve\nserve(environment=Notes)\n"
    (folder / "plugin.py").write_text(NOTES + serves)
    check_disturbed(place, PLUGGED, [(1, end_plugin), (3, lambda job: job.kill("actor-0"))])


@pytest.mark.slow
def test_a_run_of_an_agent_that_loses_its_actor_and_its_coordinator_keeps_the_same(place):
    (place / "clerk.py").write_text(AGENT)
    kills = [(1, lambda job: job.kill("actor-0")), (3, lambda job: job.kill("coordinator"))]
    check_disturbed(place, OWNED, kills)
