"""A process that only writes: the same children, status and event for each run, with the operator's own
session and concurrency. What it reaches is the most that this API server and this client give.

Lines of JSON: runs come in on the standard input, what they cost goes out.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
from operator_load import Made
from operator_pattern import fill, parts

from rollout_api import names
from rollout_operator.kube.client import gather_bounded
from rollout_operator.kube.config import open_session, read_kubeconfig
from rollout_operator.kube.resources import EVENTS, RUNS, SECRETS, Resource, resource_of
from rollout_operator.run.apply import WRITES_AT_ONCE_MAX
from rollout_operator.settings import Settings

RUNS_AT_ONCE = Settings().concurrency


class Ceiling:
    """Writes a pattern for runs."""

    def __init__(
        self, session: aiohttp.ClientSession, server: str, pattern: dict[str, Any]
    ) -> None:
        self._session = session
        self._server = server
        self._pattern = pattern
        self._rounds = parts(pattern)
        self._texts = {key: json.dumps(pattern[key]) for key in ("secret", "status", "event")}

    async def write_all(self, runs: list[Made]) -> None:
        """All runs, as many at once as the operator works on."""
        await gather_bounded([self._write(run) for run in runs], RUNS_AT_ONCE)

    async def _write(self, run: Made) -> None:
        record, *rest = self._rounds["serial"]
        await self._apply(run, record)
        await self._create(run, SECRETS, self._texts["secret"])
        for part in rest:
            await self._apply(run, part)
        for name in ("many", "workloads"):
            tasks = [self._apply(run, part) for part in self._rounds[name]]
            await gather_bounded(tasks, WRITES_AT_ONCE_MAX)
        path = RUNS.path(run.namespace, run.name, "status")
        query = f"?fieldManager={names.MANAGER_STATUS}&force=true"
        await self._send("PATCH", path + query, fill(self._texts["status"], self._pattern, run))
        await self._create(run, EVENTS, self._texts["event"])

    async def _apply(self, run: Made, part: tuple[str, str, str]) -> None:
        kind, name, text = part
        path = resource_of(kind).path(run.namespace, fill(name, self._pattern, run))
        query = f"?fieldManager={names.MANAGER_CHILDREN}&force=false"
        await self._send("PATCH", path + query, fill(text, self._pattern, run))

    async def _create(self, run: Made, resource: Resource, text: str) -> None:
        path = resource.path(run.namespace)
        await self._send("POST", path, fill(text, self._pattern, run))

    async def _send(self, method: str, path: str, text: str) -> None:
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind}
        async with self._session.request(
            method, self._server + path, data=text.encode(), headers=headers
        ) as response:
            answer = await response.read()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {answer[:500]!r}")


async def main(kubeconfig: Path, pattern: Path) -> None:
    """One line in, one line out, until the input ends."""
    connection = read_kubeconfig(kubeconfig)
    async with open_session(connection) as session:
        ceiling = Ceiling(session, connection.server, json.loads(pattern.read_text()))
        print("{}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            runs = [Made(**one) for one in json.loads(line)]
            began = time.process_time()
            await ceiling.write_all(runs)
            print(json.dumps({"cpu_seconds": time.process_time() - began}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
