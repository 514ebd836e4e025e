"""What a review costs: CPU of one verdict, and the tail that ten callers at once see over TLS.

The server is the webhook's own, in a process of its own; kopf's part (a dictionary and a log line) is
replaced by a call of the verdict. Callers keep their connections, as the API server does.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from bench_cli import long_manifest
from figures import Figure, level
from ruamel.yaml import YAML

from rollout_operator.certs.issue import new_authority, new_server, to_pem
from rollout_operator.webhook.review import review

NAME = "localhost"
REPEATS = 9
CALLS = 100
CALLERS = 10
SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "gsm8k-grpo" / "run.yaml"
SERVER = """\
import asyncio, sys
from pathlib import Path
from rollout_operator.webhook.review import review
from rollout_operator.webhook.server import Ports, WebhookServer
from rollout_operator.webhook.tls import Certificate, KeyPair

async def answer(body, **_):
    verdict = review(body["request"])
    response = {"uid": body["request"]["uid"], "allowed": verdict.allowed, "warnings": verdict.warnings}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

async def main(folder):
    pair = KeyPair(certificate=folder / "tls.crt", key=folder / "tls.key")
    server = WebhookServer(Certificate(pair), Ports(host="127.0.0.1", review=0, drain_seconds=0))
    async for _ in server(answer):
        print(server.address[1], flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


def documents() -> dict[str, dict[str, Any]]:
    """A run as people write it, and one of 200 lines with 31 rewards."""
    yaml = YAML(typ="safe", pure=True)
    return {"GRPO sample": yaml.load(SAMPLE.read_text()), "200 lines": yaml.load(long_manifest())}


def cpu_milliseconds(document: dict[str, Any]) -> float:
    """CPU time of one verdict on an update, mean over many."""
    request = {"operation": "UPDATE", "object": document, "oldObject": document}
    assert review(request).allowed, review(request).message
    start = time.process_time()
    for _ in range(CALLS):
        review(request)
    return (time.process_time() - start) * 1000 / CALLS


async def latencies(port: int, context: ssl.SSLContext, document: dict[str, Any]) -> list[float]:
    """Seconds of every call, ten callers at once."""
    body = json.dumps(
        {"request": {"uid": "u", "operation": "CREATE", "object": document}}, default=str
    ).encode()
    taken: list[float] = []
    connector = aiohttp.TCPConnector(ssl=context, limit=CALLERS)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def call() -> None:
            for _ in range(CALLS):
                start = time.perf_counter()
                async with session.post(f"https://{NAME}:{port}/validate", data=body) as answer:
                    found = await answer.json()
                taken.append(time.perf_counter() - start)
                assert found["response"]["allowed"], found

        await asyncio.gather(*(call() for _ in range(CALLERS)))
    return taken[CALLERS:]


def serve(folder: Path) -> tuple[subprocess.Popen[str], int, ssl.SSLContext]:
    """Start the server; its port, and a context that trusts it."""
    authority = new_authority(datetime.now(UTC))
    made = new_server(authority, [NAME], datetime.now(UTC))
    (folder / "tls.crt").write_bytes(made.certificate_pem)
    (folder / "tls.key").write_bytes(made.key_pem)
    command = [sys.executable, "-c", SERVER, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    context = ssl.create_default_context(cadata=to_pem(authority.certificate).decode())
    return process, int(process.stdout.readline()), context


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure() -> Iterator[Figure]:
    """CPU per review, and the tail over the mean."""
    found = documents()
    for name, document in found.items():
        samples = [cpu_milliseconds(document) for _ in range(REPEATS)]
        yield level(f"review, {name}, CPU", samples, "ms", "info")
    with tempfile.TemporaryDirectory() as folder:
        process, port, context = serve(Path(folder))
        try:
            asyncio.run(latencies(port, context, found["GRPO sample"]))
            runs = [
                asyncio.run(latencies(port, context, found["GRPO sample"])) for _ in range(REPEATS)
            ]
        finally:
            process.terminate()
            process.wait(30)
    means = [statistics.mean(run) for run in runs]
    tails = [percentile(run, 0.99) for run in runs]
    ratios = [tail / mean for tail, mean in zip(tails, means, strict=True)]
    yield level("ten at once, mean", [1000 * mean for mean in means], "ms", "info")
    yield level("ten at once, p99", [1000 * tail for tail in tails], "ms", "info")
    yield level("ten at once, p99 over mean", ratios, "x", "<= 5")
