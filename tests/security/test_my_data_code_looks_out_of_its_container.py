"""The attacker's wish: data code that reaches from its container into the coordinator's, or has it believe what is not so.

The container's process runs here beside the tests'; what its user, mounts and process numbers keep apart is asked of real
pods (``e2e/training``).
"""

import json
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import msgspec
import pytest
from author_runs import build_config, write_environment

from rollout.coordinator.rows import build_rows
from rollout.entrypoints.prepare import resolve_locally
from rollout.errors import DataError
from rollout.ledger.opening import DSN_VARIABLE
from rollout.plugins.author import look_environment
from rollout.plugins.row_host import HostBounds, connect_socket
from rollout.runs.resolve import ModelFacts, Resolution, believe
from rollout_api.presets import resolve
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import WorkerOrder

DSN = "postgresql://coordinator:hunter2@db/ledger"
LOOK_AROUND = """
def look(path):
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError as error:
        return type(error).__name__
parents, pid = [], os.getppid()
while pid > 1:
    parents.append(pid)
    pid = int(look(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
loot = {
    "environment": dict(os.environ),
    "parents": {str(one): look(f"/proc/{one}/environ") for one in parents[:2]},
    "files": [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")],
}
(HERE / "loot.json").write_text(json.dumps(loot))
return [{"prompt": "1+1=", "answer": "2"}]
"""
STAY = """
if not (HERE / "stayed").exists():
    if os.fork() == 0:
        os.setsid()
        (HERE / "stayed").write_text(str(os.getpid()))
        time.sleep(1000)
    while not (HERE / "stayed").exists() or not (HERE / "stayed").read_text():
        time.sleep(0.01)
    os.kill(os.getppid(), 9)
return [{"prompt": "1+1=", "answer": "2"}]
"""


@pytest.fixture
def container():
    """A process that listens as the container's does, with what the author gives; where, and its number."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "MY_SECRET": "mine"}
    with tempfile.TemporaryDirectory(prefix="rows-") as name:
        place = Path(name, "socket")
        process = subprocess.Popen(
            [sys.executable, "-m", "rollout.entrypoints.rows", "--socket", str(place)],
            env={**given, "HOME": name, "ROLLOUT_CACHE": os.environ.get("ROLLOUT_CACHE", name)},
        )
        try:
            yield place, process.pid
        finally:
            process.terminate()
            process.wait()


def run_with(code, place, folder):
    name = f"mine_{uuid.uuid4().hex}"
    config = build_config(write_environment(folder, code, name), name)
    layout = config.layout.model_copy(update={"rows_socket": str(place)})
    return config.model_copy(update={"layout": layout})


def loot_in(folder):
    return json.loads((folder / "loot.json").read_text())


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_it_finds_what_its_author_gave_and_nothing_of_the_coordinators(
    container, tmp_path, monkeypatch
):
    place, listener = container
    monkeypatch.setenv(DSN_VARIABLE, DSN)
    with (tmp_path / "ledger.db").open("w+b") as ledger:
        os.set_inheritable(ledger.fileno(), True)
        rows = build_rows(run_with(LOOK_AROUND, place, tmp_path))
        assert rows.train([0])[0]["answer"] == "2"
    loot = loot_in(tmp_path)
    assert "hunter2" not in json.dumps(loot)
    assert loot["environment"]["MY_SECRET"] == "mine"
    assert loot["parents"][str(listener)] == "PermissionError"
    assert not [one for one in loot["files"] if "ledger" in one]


@pytest.mark.process
def test_it_looks_at_the_data_and_others_at_the_model(container, tmp_path, monkeypatch):
    monkeypatch.setenv(DSN_VARIABLE, DSN)
    config = run_with(LOOK_AROUND, container[0], tmp_path)
    given = {name: getattr(config, name) for name in WorkerOrder.model_fields}
    sampling = Sampling.model_validate({"maxNewTokens": 8})
    train = config.spec.train.model_copy(update={"sampling": sampling})
    spec = config.spec.model_copy(update={"train": train})
    given["spec"] = resolve(spec, engine="embedded").spec
    resolved = resolve_locally(WorkerOrder(**given)).resolved
    assert resolved.prompt_tokens_max == 4
    assert Path(resolved.model_path).is_dir()
    assert loot_in(tmp_path)["environment"]["MY_SECRET"] == "mine"
    assert "hunter2" not in json.dumps(loot_in(tmp_path))


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux")
def test_it_kills_its_guard_and_stays_behind(container, tmp_path):
    config = run_with(STAY, container[0], tmp_path)
    assert build_rows(config).train([0])
    assert build_rows(config).train([0])
    pid = int((tmp_path / "stayed").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nobody_listens():
    with pytest.raises(DataError, match="the container rows did not listen at /nowhere"):
        connect_socket(Path("/nowhere/socket"), HostBounds(connect_seconds=0.0))


KNOWN = ModelFacts(
    model_path="/models/a",
    model_digest="blake3:a",
    model_revision=None,
    num_parameters=1,
    context_length=100,
    stop_token_ids=(1,),
    pad_token_id=0,
    models={},
    model_digests={},
    model_revisions={},
)


def found(**said):
    facts = msgspec.structs.asdict(KNOWN)
    return Resolution(**{**facts, "prompt_tokens_max": 4, "data_digests": {"train": "d"}, **said})


def test_it_says_which_model_is_trained():
    lie = found(model_path="/etc", model_digest="blake3:b", models={"critic": "/"}, num_rows=3)
    believed = believe(lie, KNOWN, "spec.train.environment.python")
    assert believed == found(num_rows=3)


@pytest.mark.parametrize(
    "lie",
    [
        {"prompt_tokens_max": 101},
        {"prompt_tokens_max": 0},
        {"num_rows": -1},
        {"num_bad": 1 << 60},
        {"left_out": (-1,)},
        {"data_digests": {"train": "x" * 2000}},
        {"data_digests": {"train": "\x1b[2J"}},
    ],
)
def test_it_finds_what_cannot_be(lie):
    with pytest.raises(DataError, match=r"spec\.train\.environment\.python: "):
        believe(found(**lie), KNOWN, "spec.train.environment.python")


def test_its_words_are_shown_and_not_obeyed():
    said = believe(found(first_bad="\x1b[2J" + "x" * 100_000), KNOWN, "f").first_bad
    assert said.startswith("\\x1b") and len(said) < 10_000


def spec_with(**given):
    base = {"model": {"uri": "hf://o/m"}, "train": {"algorithm": {"sft": {}}, "maxSteps": 1}}
    return RolloutRunSpec.model_validate({**base, **given})


OURS = {"PATH": "/bin", "HF_TOKEN": "the platform's", DSN_VARIABLE: DSN}
HUB = [{"name": "HF_ENDPOINT", "value": "https://mine.example"}]


def test_a_child_beside_the_ledger_gets_variables_of_mine_that_run_something():
    found = look_environment(OURS, spec_with(env=[{"name": "CXX", "value": "sh"}]))
    assert found == {"PATH": "/bin", "HF_TOKEN": "the platform's"}


def test_the_platforms_token_is_sent_to_a_hub_of_mine():
    assert "HF_TOKEN" not in look_environment(OURS, spec_with(env=HUB))
    own = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert "HF_TOKEN" in look_environment(OURS, spec_with(env=[*HUB, own]))
