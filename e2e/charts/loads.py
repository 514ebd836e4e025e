"""Valid runs, applied all the time: who is refused, and in whose words."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from cluster.kubectl import Kubectl
from rollout_operator.kube.config import find_connection, open_session
from runs import build_run
from waiting import wait_until

NUM_RUNS = 4
REVIEWS_MIN = 50
SECONDS_MIN = 3600


@dataclass(slots=True)
class Load:
    """What has come of it so far."""

    num_taken: int = 0
    refused: list[str] = field(default_factory=list)

    @property
    def num_reviewed(self) -> int:
        return self.num_taken + len(self.refused)


@contextmanager
def applying(kubectl: Kubectl, *, per_second: float = 10.0) -> Iterator[Load]:
    """Apply runs that are suspended, each time with another spec, so that each is reviewed.

    It goes on after the block until enough were reviewed, on a slow machine too.
    """
    load, stop = Load(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_apply(kubectl, load, stop, per_second)))
    thread.start()
    try:
        yield load
        wait_until(lambda: load.num_reviewed >= REVIEWS_MIN, "enough reviews")
    finally:
        stop.set()
        thread.join(60)
        names = [f"load-{number}" for number in range(NUM_RUNS)]
        kubectl("delete", "rolloutrun", *names, "--ignore-not-found")


async def _apply(kubectl: Kubectl, load: Load, stop: threading.Event, per_second: float) -> None:
    connection = find_connection({"KUBECONFIG": str(kubectl.kubeconfig)})
    runs = (
        f"{connection.server}/apis/rollout.dev/v1alpha1/namespaces/{kubectl.namespace}/rolloutruns"
    )
    async with open_session(connection) as session:
        number = 0
        while not stop.is_set():
            name = f"load-{number % NUM_RUNS}"
            limits = {"activeSeconds": SECONDS_MIN + number}
            run = build_run(name, {"suspend": True, "limits": limits})
            words = await _send(session, f"{runs}/{name}", run)
            load.num_taken += not words
            load.refused += [words] if words else []
            number += 1
            await asyncio.sleep(1 / per_second)


async def _send(session: aiohttp.ClientSession, url: str, run: dict[str, Any]) -> str:
    """Server-side apply; the words of a refusal, else nothing."""
    headers = {"Content-Type": "application/apply-patch+yaml"}
    parameters = {"fieldManager": "load", "force": "true"}
    try:
        async with session.patch(url, json=run, params=parameters, headers=headers) as answer:
            return "" if answer.ok else (await answer.json()).get("message", f"{answer.status}")
    except (aiohttp.ClientError, TimeoutError) as error:
        return repr(error)
