"""The attacker's wish: an environment whose code runs beside the ledger's credentials, and takes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import httpx
import pytest
from author_runs import build_config, write_environment

from cluster.control.ports import find_free_port
from rollout.coordinator.rows import build_rows
from rollout.entrypoints.prepare import resolve_locally
from rollout.ledger.opening import DSN_VARIABLE
from rollout_api.presets import resolve
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.worker import WorkerOrder

DSN = "postgresql://coordinator:hunter2@db/ledger"
LOOK_AROUND = """
def look(path):
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError as error:
        return type(error).__name__
def connect():
    from rollout.ledger.opening import read_dsn
    from rollout.errors import SpecError
    try:
        return read_dsn(os.environ)
    except SpecError as error:
        return "refused"
numbers = sorted(int(one) for one in os.listdir("/proc/self/fd"))
links = {}
for number in numbers:
    try:
        links[number] = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        pass
parents, pid = [], os.getppid()
while pid > 1:
    parents.append(pid)
    pid = int(look(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
loot = {
    "environment": dict(os.environ),
    "parents": {str(one): look(f"/proc/{one}/environ") for one in parents[:2]},
    "files": links,
    "dsn": connect(),
    "modules": sorted(one for one in sys.modules if one.startswith("rollout.ledger")),
}
return [{"prompt": json.dumps(loot), "answer": "x"}]
"""


@pytest.fixture
def config(tmp_path):
    name = f"mine_{uuid.uuid4().hex}"
    return build_config(write_environment(tmp_path, LOOK_AROUND, name), name)


def loot_of(rows):
    (row,) = rows.train([0])
    return json.loads(row["prompt"])


@pytest.mark.process
def test_a_source_dumps_the_environment_that_it_runs_in(config, monkeypatch):
    monkeypatch.setenv(DSN_VARIABLE, DSN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter3")
    loot = loot_of(build_rows(config))
    assert "hunter" not in json.dumps(loot["environment"])
    assert loot["dsn"] == "refused"


@pytest.mark.process
def test_a_source_gets_what_its_author_gave(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "from-the-shell")
    monkeypatch.setenv("MY_OTHER", "not-named")
    monkeypatch.setenv("MY_JUDGE_KEY", "for-actors")
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    given = {
        "env": [
            {"name": "MY_PLACE", "value": "here"},
            {"name": "MY_TOKEN", "valueFrom": secret},
            {"name": "MY_JUDGE_KEY", "valueFrom": secret, "roles": ["Actor"]},
            {"name": "MY_JUDGE", "value": "there", "roles": ["Actor"]},
        ]
    }
    name = f"mine_{uuid.uuid4().hex}"
    found = loot_of(
        build_rows(build_config(write_environment(tmp_path, LOOK_AROUND, name), name, **given))
    )["environment"]
    assert (found["MY_PLACE"], found["MY_TOKEN"]) == ("here", "from-the-shell")
    assert not {"MY_OTHER", "MY_JUDGE_KEY", "MY_JUDGE"} & set(found)


@pytest.mark.process
def test_a_source_finds_open_files_of_the_coordinator(config, tmp_path):
    with (tmp_path / "ledger.db").open("w+b") as ledger:
        os.set_inheritable(ledger.fileno(), True)
        loot = loot_of(build_rows(config))
    assert not [one for one in loot["files"].values() if "ledger" in one]
    assert len([one for one in loot["files"].values() if one.startswith("socket:")]) == 1


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_source_reads_what_the_coordinator_was_started_with(config, tmp_path):
    port = find_free_port()
    layout = config.layout.model_copy(update={"coordinator_url": f"http://127.0.0.1:{port}"})
    (tmp_path / "run" / "token").write_text("secret")
    file = tmp_path / "worker.json"
    file.write_text(config.model_copy(update={"layout": layout}).model_dump_json(exclude_none=True))
    write_loot = LOOK_AROUND.replace(
        "return [", '(HERE / "loot.json").write_text(json.dumps(loot))\nreturn ['
    )
    write_environment(tmp_path, write_loot, config.spec.train.environment.python.module)
    process = subprocess.Popen(
        [sys.executable, "-m", "rollout.entrypoints.coordinator", "--config", str(file)],
        env={**os.environ, DSN_VARIABLE: DSN},
        stderr=subprocess.PIPE,
    )
    try:
        with httpx.HTTPTransport(retries=200) as transport:
            httpx.Client(transport=transport).get(f"http://127.0.0.1:{port}/healthz", timeout=60)
    finally:
        process.terminate()
        said = process.communicate(timeout=60)[1].decode()
    loot = json.loads((tmp_path / "loot.json").read_text())
    assert "hunter2" not in json.dumps(loot), said
    assert loot["parents"][str(process.pid)] == "PermissionError"


@pytest.mark.process
def test_a_source_is_looked_at_in_the_coordinators_pod(config, tmp_path, monkeypatch):
    monkeypatch.setenv(DSN_VARIABLE, DSN)
    kept = (
        LOOK_AROUND.partition("return [{")[0]
        + '(HERE / "loot.json").write_text(json.dumps(loot))\n'
    )
    write_loot = kept + 'return [{"prompt": "1+1=", "answer": "2"}]'
    write_environment(tmp_path, write_loot, config.spec.train.environment.python.module)
    given = {name: getattr(config, name) for name in WorkerOrder.model_fields}
    train = config.spec.train.model_copy(
        update={"sampling": Sampling.model_validate({"maxNewTokens": 8})}
    )
    spec = config.spec.model_copy(update={"train": train})
    given["spec"] = resolve(spec, engine="embedded").spec
    assert resolve_locally(WorkerOrder(**given)).resolved.prompt_tokens_max == 4
    loot = json.loads((tmp_path / "loot.json").read_text())
    assert "hunter2" not in json.dumps(loot["environment"])
    assert loot["dsn"] == "refused"
