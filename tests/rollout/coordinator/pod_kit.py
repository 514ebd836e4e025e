"""An order as the operator writes it, for pods that run here: certificates, accounts, a small offline run."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tls_kit import ISSUER, UID, Authority, Issuer, authentication

from rollout.local.resolve import Resolution
from rollout.local.resolved import complete
from rollout_api import parse_run, resolve
from rollout_api.worker import Layout, RunIdentity, WorkerConfig, WorkerOrder

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
    return resolve(parse_run(manifest).spec).spec


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """What lies in the pods' volumes, by pod; all share one folder here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.issuer, authority = folder, Issuer("ES256"), Authority()
        authority.issue(folder / "tls")
        self.ca = authority.write_ca(folder / "ca.crt")
        self.keys = self.issuer.write_keys(folder / "jwks.json")
        self.url = f"https://localhost:{free_port()}"

    def order(self, pod: str, role: str, **changes: Any) -> Path:
        """Write the order of one pod, and the token of its account; the file's path."""
        place = self.folder / pod
        place.mkdir(exist_ok=True)
        (place / "token").write_text(self.issuer.token(role) if role != "coordinator" else "-")
        order = WorkerOrder(
            run=RunIdentity(name="arithmetic", namespace="team", uid=UID),
            spec=build_spec(self.folder, **changes),
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
            ),
            authentication=authentication(self.keys),
            heartbeat_seconds=0.5,
            lease_seconds=10.0,
        )
        path = place / "order.json"
        path.write_text(order.model_dump_json(exclude_none=True))
        return path


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


__all__ = ["ISSUER", "Cluster", "build_config", "build_spec", "free_port"]
