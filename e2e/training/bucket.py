"""A bucket that pods of real nodes and this machine reach: an S3 server on the nodes' bridge, and a runtime that names it."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from installation import ROLES, build_runtime

from cluster.control.ports import find_free_ports
from cluster.local import LocalCluster
from runs import lay_over
from waiting import wait_until

BUCKET, REGION = "runs", "us-east-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": REGION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where it is served; everybody's credentials are `CREDENTIALS`."""

    endpoint: str

    def client(self) -> Any:
        """Somebody with the credentials."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )

    def keys(self, prefix: str) -> set[str]:
        """The keys of all objects that begin with it."""
        pages = (
            self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        )
        return {one["Key"] for page in pages for one in page.get("Contents", ())}

    def runtime(self, name: str, cache: Path) -> dict[str, Any]:
        """The runtime of the sample, with this bucket for every run."""
        env = [{"name": key, "value": value} for key, value in CREDENTIALS.items()]
        storage = {"uri": f"s3://{BUCKET}/team", "endpoint": self.endpoint, "region": REGION}
        more = {"storage": storage, "roles": {key: {"env": env} for key in ROLES}}
        return lay_over(build_runtime(cache), {"metadata": {"name": name}, "spec": more})


@contextmanager
def serving(cluster: LocalCluster, folder: Path) -> Iterator[Bucket]:
    """An S3 server for a block, with one bucket."""
    host = cluster.nodes[0].place.network.host
    (port,) = find_free_ports([host])
    with (folder / "s3.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        bucket = Bucket(endpoint=f"http://{host}:{port}")

        def made() -> bool:
            return _listens(host, port)

        def over() -> str:
            return "" if server.poll() is None else (folder / "s3.log").read_text()

        wait_until(made, "the S3 server listens", hopeless=over)
        bucket.client().create_bucket(Bucket=BUCKET)
        yield bucket
    finally:
        server.terminate()
        server.wait(60)


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
