"""An order as the operator writes it, for pods that run here: certificates, accounts, a small offline run."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tls_kit import ISSUER, UID, Authority, Issuer, authentication
from warm import start_module

from cluster.control.ports import find_free_port
from rollout.errors import RolloutError
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.tls import Trust
from rollout.protocol.transport import HttpTransport
from rollout.runs.resolve import Resolution
from rollout.runs.worker_config import complete
from rollout_api import parse_run, resolve
from rollout_api.worker import Layout, RunIdentity, WorkerConfig, WorkerOrder

ENTRY_POINT = "rollout.entrypoints.pod"
SECONDS_MAX = 420.0
DIGEST = "blake3:" + "0" * 64
FOUND = Resolution(
    model_path="model",
    model_digest=DIGEST,
    model_revision=None,
    num_parameters=1,
    context_length=64,
    stop_token_ids=(1,),
    prompt_tokens_max=16,
    data_digests={},
)


def write_rows(path: Path, num_rows: int = 8) -> Path:
    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(num_rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build_spec(folder: Path, **changes: Any) -> Any:
    """A supervised run over a few rows."""
    rows = write_rows(folder / "rows.jsonl")
    manifest = {
        "schema_version": 1,
        "name": "arithmetic",
        "model": {"uri": "rollout://tiny-qwen2"},
        "train": {
            "algorithm": {"sft": {"batchSize": 4}},
            "data": {"jsonl": {"uri": str(rows)}},
            "maxSteps": 2,
        },
        **changes,
    }
    kept = {name: value for name, value in manifest.items() if value is not None}
    return resolve(parse_run(kept).spec).spec


class Cluster:
    """What lies in the pods' volumes, by pod; all share one folder here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.issuer, authority = folder, Issuer("ES256"), Authority()
        authority.issue(folder / "tls")
        self.ca = authority.write_ca(folder / "ca.crt")
        self.keys = self.issuer.write_keys(folder / "jwks.json")
        self.url = f"https://localhost:{find_free_port()}"
        self.places: dict[str, str] = {}

    def order(self, pod: str, role: str, **changes: Any) -> Path:
        """Write the order of one pod, and the token of its account; the file's path."""
        place = self.folder / pod
        place.mkdir(exist_ok=True)
        spec = build_spec(self.folder, **changes)
        # Without a learner the coordinator's account is the learner's: its pod publishes the one version.
        account = "learner" if role == "coordinator" and spec.train is None else role
        (place / "token").write_text(
            self.issuer.token(account) if account != "coordinator" else "-"
        )
        order = WorkerOrder(
            run=RunIdentity(name="arithmetic", namespace="team", uid=UID),
            spec=spec,
            layout=Layout(
                run_dir=str(place / "run"),
                coordinator_url=self.url,
                listen_host="127.0.0.1",
                ca_file=str(self.ca),
                certificate_file=str(self.folder / "tls" / "tls.crt"),
                key_file=str(self.folder / "tls" / "tls.key"),
                token_file=str(place / "token"),
                objects_dir=str(place / "run" / "objects"),
                objects_served=True,
                ledger_path=str(place / "run" / "ledger.db"),
                **self.places,
            ),
            authentication=authentication(self.keys),
            heartbeat_seconds=0.5,
            lease_seconds=10.0,
        )
        path = place / "order.json"
        path.write_text(order.model_dump_json(exclude_none=True))
        return path


class Pod:
    """One pod: its process, and what it wrote."""

    def __init__(self, cluster: Cluster, name: str, role: str, **environment: str) -> None:
        self.name, self.log = name, cluster.folder / f"{name}.log"
        order = cluster.order(name, role, **cluster.spec)
        with self.log.open("ab") as log:
            self.process = start_module(
                *(ENTRY_POINT, role, "--order", str(order)),
                folder=Path.cwd(),
                out=log.fileno(),
                err=log.fileno(),
                environment={
                    "ROLLOUT_POD_NAME": name,
                    "CUDA_VISIBLE_DEVICES": "",
                    **environment,
                },
            )

    def text(self) -> str:
        return self.log.read_text()

    def tell_to_go(self) -> int:
        self.process.terminate()
        return self.process.wait(SECONDS_MAX)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Pods:
    """The pods of one run, and the operator's view of them."""

    def __init__(self, folder: Path, **spec) -> None:
        self.cluster = Cluster(folder)
        self.cluster.spec = spec
        self.port = find_free_port()
        self.all: list[Pod] = []

    def start(self, name: str, role: str, **environment: str) -> Pod:
        pod = Pod(self.cluster, name, role, **environment)
        self.all.append(pod)
        return pod

    def learner(self, rank: int, incarnation: int = 1) -> Pod:
        return self.start(
            f"arithmetic-learner-{rank}",
            "learner",
            ROLLOUT_POD_IP="127.0.0.1",
            ROLLOUT_INCARNATION=str(incarnation),
            ROLLOUT_MEETING_PORT=str(self.port),
        )

    def operator(self, patience: float = 1.0) -> CoordinatorClient:
        token = self.cluster.issuer.token("operator")
        transport = HttpTransport(self.cluster.url, lambda: token, Trust(self.cluster.ca))
        return CoordinatorClient(transport, patience_seconds=patience)

    def until(self, holds, what: str):
        """Wait for a status; a pod that ended says why."""
        operator, deadline, status = self.operator(), time.monotonic() + SECONDS_MAX, None
        while time.monotonic() < deadline:
            for pod in self.all:
                assert pod.process.poll() is None, f"{pod.name} ended\n{pod.text()[-4000:]}"
            try:
                status = operator.status()
            except RolloutError:
                status = None
            if status is not None and holds(status):
                operator.close()
                return status
            time.sleep(0.2)
        said = "\n".join(pod.text()[-2000:] for pod in self.all)
        raise AssertionError(f"{what}: not in time; {status}\n{said}")

    def close(self) -> None:
        for pod in self.all:
            pod.kill()


def build_config(folder: Path, **changes: Any) -> WorkerConfig:
    """A configuration without having looked at the model."""
    order = WorkerOrder(
        run=RunIdentity(name="arithmetic", uid=UID),
        spec=build_spec(folder, **changes),
        layout=Layout(
            run_dir=str(folder),
            coordinator_url="http://127.0.0.1:1",
            token_file=str(folder / "token"),
            objects_dir=str(folder / "objects"),
            ledger_path=str(folder / "ledger.db"),
        ),
    )
    return complete(order, FOUND, "Float32")


__all__ = ["ISSUER", "Cluster", "Pods", "build_config", "build_spec"]
