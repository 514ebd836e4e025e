"""A manifest with ``serve``: on this machine it is ``rollout serve --train``; in a pod the same with a door for the operator."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer
from serve_kit import wait_for_json
from warm import start_rollout

from rollout.coordinator.server.callers import Caller, Unauthenticated
from rollout.coordinator.status.kubernetes import Unwritten
from rollout.entrypoints.serving.training import build_settings, open_keys
from rollout.errors import SpecError
from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.pods.serving.training import NO_SNAPSHOTS, OperatorDoor, client_url, tell_progress
from rollout.supervisor.run import run_manifest
from rollout_api.v1alpha1.run_status import ServiceCounts
from rollout_api.worker import WorkerOrder

BASE = "rollout://tiny-adder"
KEYS = [{"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}]


def build_manifest(**serve) -> dict:
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "desk"},
        "spec": {"model": {"uri": BASE}, "serve": {"modelName": "tiny", **serve}},
    }


def build_order(folder: Path) -> WorkerOrder:
    return WorkerOrder.model_validate(
        {
            "run": {"name": "desk", "namespace": "ns", "uid": "u"},
            "attempt": 3,
            "threads": 2,
            "spec": build_manifest(apiKeys=KEYS, skipUnembed=True)["spec"],
            "layout": {
                "runDir": str(folder / "run"),
                "coordinatorUrl": "https://desk-coordinator-0.desk-coordinator.ns.svc:8443",
                "listenHost": "0.0.0.0",
                "caFile": "/ca",
                "tokenFile": "/token",
                "objectsDir": "/objects",
                "ledgerPath": "/ledger",
                "servicePort": 8000,
                "apiKeysDir": str(folder / "given"),
            },
            "progress": {"apiUrl": "https://api", "tokenFile": "/t", "everySeconds": 1.0},
        }
    )


def test_a_manifest_serves_from_the_folder_of_rollout_serve_until_ctrl_c(tmp_path):
    (tmp_path / "desk.yaml").write_text(yaml.safe_dump(build_manifest(apiKeys=KEYS)))
    said, notes = tmp_path / "said.json", tmp_path / "notes.txt"
    with said.open("w") as out, notes.open("w") as err:
        process = start_rollout(
            *("run", "-f", str(tmp_path / "desk.yaml"), "--output", "json"),
            folder=tmp_path,
            out=out.fileno(),
            err=err.fileno(),
            environment={"ROLLOUT_HOME": str(tmp_path)},
        )
    try:
        found = wait_for_json(process, said, notes)
        assert found["models"] == ["tiny"]
        assert found["key"].startswith("tml-sk-rollout-")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert "the keys of this machine hold" in notes.read_text()
    assert (tmp_path / "service" / "calls.sqlite").exists()


def test_from_a_program_a_service_is_refused_as_it_would_never_end(tmp_path):
    (tmp_path / "desk.yaml").write_text(yaml.safe_dump(build_manifest()))
    with pytest.raises(SpecError, match="start it by rollout run -f"):
        run_manifest(tmp_path / "desk.yaml")


def test_a_pod_serves_on_its_own_address_with_the_orders_threads(tmp_path):
    settings = build_settings(build_order(tmp_path))
    assert settings.bases == (f"tiny={BASE}",)
    assert (settings.host, settings.port, settings.threads) == ("0.0.0.0", 8000, 2)
    assert settings.skip_unembed
    assert settings.folder == tmp_path / "run" / "service"


def test_the_keys_of_a_pod_are_those_that_its_secret_holds(tmp_path):
    order, given = build_order(tmp_path), tmp_path / "given"
    key = KeyFile(tmp_path / "made").create("x", KeyLimits(), now=0.0, expires=None)
    given.mkdir()
    settings = build_settings(order)
    with pytest.raises(SpecError, match="ann: missing"):
        open_keys(order, settings)
    (given / "ann").write_text(key)
    open_keys(order, settings)
    found = KeyFile(settings.keys).read().identify(f"Bearer {key}", 1.0)
    assert found.name == "ann"


class OneOperator:
    """Knows one header."""

    def identify(self, header: str) -> Caller:
        if header == "Bearer actor":
            return Caller("actor")
        if header != "Bearer operator":
            raise Unauthenticated("nobody")
        return Caller("operator")


@pytest.mark.parametrize(
    ("who", "path", "status"),
    [
        ("operator", "settings", 200),
        ("operator", "stop", 200),
        ("operator", "snapshot", 409),
        ("actor", "settings", 403),
        ("eve", "stop", 401),
    ],
)
async def test_the_operator_alone_is_answered_and_snapshots_are_refused(who, path, status):
    door = OperatorDoor(host="127.0.0.1", port=0, callers=OneOperator(), certificate=None)
    async with TestClient(TestServer(door.build())) as client:
        assert (await client.get("/healthz")).status == 200
        said = await client.post(
            f"/v1/operator/{path}",
            json={"generation": 7},
            headers={"Authorization": f"Bearer {who}"},
        )
        assert said.status == status
        if path == "snapshot":
            assert await said.text() == NO_SNAPSHOTS


class Told(Exception):  # noqa: N818 - ends an endless duty
    """Enough has been written."""


class Writer:
    """Refuses the first write, and ends the duty after the second one that it takes."""

    def __init__(self) -> None:
        self.refused, self.taken = 0, []

    async def write(self, progress) -> None:
        if not self.refused:
            self.refused = 1
            raise Unwritten("busy")
        self.taken.append(progress)
        if len(self.taken) == 2:
            raise Told


async def test_progress_is_written_when_it_has_changed_and_again_where_it_was_refused(
    tmp_path, monkeypatch
):
    paused = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr("rollout.pods.serving.training.asyncio.sleep", pause)
    seen = iter([(0, 0), (0, 0), (0, 0), (1, 4)])
    writer, order = Writer(), build_order(tmp_path)
    with pytest.raises(Told):
        await tell_progress(writer, order, lambda: next(seen))
    url = client_url(order)
    assert url == "http://desk-coordinator.ns.svc:8000"
    assert [one.serve for one in writer.taken] == [
        ServiceCounts(url=url, models=0, calls=0),
        ServiceCounts(url=url, models=1, calls=4),
    ]
    assert {one.attempt for one in writer.taken} == {3}
    assert paused == [10.0, 1.0, 1.0]
