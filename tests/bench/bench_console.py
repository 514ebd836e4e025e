"""The console over a run of 100,000 samples, a sample of a million tokens and a training service's book: milliseconds, bytes and memory of a real process.

A view's time is that of the whole answer to a client on this machine, its bytes are those that travelled.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

TESTS = Path(__file__).parents[1] / "rollout"
sys.path[:0] = [str(TESTS / "console"), str(TESTS / "ledger")]

import httpx
import msgspec
from console_kit import write_config
from figures import Figure, level
from ledger_kit import IDENTITY, claim_request, consume, ended, step_commit, trajectory, version
from service_book import write_book

from rollout.ledger.records import Admission, AttemptEnd, Lease, Limits, NewTask
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.types import Trajectory, VersionSpan

STEPS, GROUPS, GROUP = 391, 32, 8
TOKENS = 1_000_000
REPEATS = 7
MANY, LONG = "/runs/many-1", "/runs/long-1"
VIEWS = {
    "list of runs": "/",
    "overview": MANY,
    "curves": f"{MANY}/curves",
    "steps": f"{MANY}/steps",
    "step": f"{MANY}/steps/200",
    "samples, first page": f"{MANY}/samples",
    "samples, page 2000": f"{MANY}/samples?page=2000",
    "samples, longest first": f"{MANY}/samples?sort=-length",
    "samples, by reward and ending": f"{MANY}/samples?sort=reward&ending=stop",
    "text that nobody wrote": f"{MANY}/samples?text=nowhere",
    "sample": f"{MANY}/sample?task=t/5&sample=1",
    "tokens": f"{MANY}/tokens?task=t/5&sample=1",
    "workers": f"{MANY}/workers",
}
LONG_VIEWS = {
    "sample of 1 M tokens": f"{LONG}/sample?task=t/0&sample=1",
    "its first tokens": f"{LONG}/tokens?task=t/0&sample=1",
    "its last tokens": f"{LONG}/tokens?task=t/0&sample=1&from=998000",
    "its tokens as a table": f"{LONG}/tokens?task=t/0&sample=1&from=500000&as=table",
}
MODEL, CALLS = f"{'a' * 32}:train:0", 120_000
OTHER, OTHER_CALLS = f"{'b' * 32}:train:0", 60_000
OF_MODEL = f"/models/{MODEL}"
MODEL_VIEWS = {
    "list with a model of 120,000 calls": "/?name=aaaa",
    "model": OF_MODEL,
    "its calls, newest": f"{OF_MODEL}/calls",
    "its calls, in the middle": f"{OF_MODEL}/calls?before=60000",
    "one call": f"{OF_MODEL}/calls/60001",
    "its samples, newest": f"{OF_MODEL}/samples",
    "its samples after step 100": f"{OF_MODEL}/samples?step=100",
    "one of them": f"{OF_MODEL}/sample?save=300&sampler={MODEL}:sampler:300&call=0&place=1",
}


def measure() -> Iterator[Figure]:
    """Every view's milliseconds and kilobytes, and the console's memory at its highest."""
    with tempfile.TemporaryDirectory() as home:
        write_book(Path(home) / "service", {MODEL: CALLS, OTHER: OTHER_CALLS})
        asyncio.run(_write(Path(home), "many-1", STEPS, GROUPS, GROUP, _short))
        asyncio.run(_write(Path(home), "long-1", 1, 1, 2, _long))
        command = [sys.executable, "-m", "rollout", "ui", "--runs", home, "--port", "0"]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            yield from _measure(console)
        finally:
            console.terminate()
            console.wait(timeout=30)


def _measure(console: subprocess.Popen[str]) -> Iterator[Figure]:
    link = console.stdout.readline().split(": ", 1)[1].strip()
    with httpx.Client(base_url=link.split("/?")[0], timeout=60) as client:
        client.get(link)
        for views, most in ((VIEWS, 300), (LONG_VIEWS, 2000)):
            for name, path in views.items():
                yield from _view(client, name, path, (most, 150))
        for name, path in MODEL_VIEWS.items():
            yield from _view(client, f"{name}, not counted", path, (300, 24))
        yield level(
            "60,000 calls counted while a page is open", [_wait_counted(client)], "s", "info"
        )
        for name, path in MODEL_VIEWS.items():
            yield from _view(client, name, path, (300, 24))
    status = Path(f"/proc/{console.pid}/status").read_text()
    highest = int(status.split("VmHWM:")[1].split()[0]) / 1000
    yield level("memory of the console, highest", [highest], "MB", "<= 300")


def _view(client: httpx.Client, name: str, path: str, most: tuple[int, int]) -> Iterator[Figure]:
    """At most so many milliseconds and kilobytes."""
    found = [_get(client, path) for _ in range(REPEATS)]
    yield level(name, [ms for ms, _ in found], "ms", f"<= {most[0]}")
    yield level(f"{name}, travelled", [kb for _, kb in found], "KB", f"<= {most[1]}")


def _wait_counted(client: httpx.Client) -> float:
    """Seconds until the page's own stream says that its model is counted."""
    start = time.perf_counter()
    with client.stream("GET", f"/models/{OTHER}/live") as answer:
        for line in answer.iter_lines():
            if line.startswith("data:") and json.loads(line[5:])["state"].split()[2] == "True":
                return time.perf_counter() - start
    raise RuntimeError("the stream ended before the model was counted")


def _get(client: httpx.Client, path: str) -> tuple[float, float]:
    start = time.perf_counter()
    with client.stream("GET", path) as answer:
        size = sum(map(len, answer.iter_raw()))
    answer.raise_for_status()
    return 1000 * (time.perf_counter() - start), size / 1000


def _short(ordinal: int, sample: int) -> Trajectory:
    draw = random.Random(ordinal * GROUP + sample)
    number = draw.randrange(20, 200)
    return replace(
        _sized(trajectory(ordinal, sample), number, draw),
        text="so many words " * (number // 4),
        prompt_text=f"what is {ordinal}? " * 8,
        answer=str(ordinal),
        reward=draw.random(),
    )


def _long(ordinal: int, sample: int) -> Trajectory:
    draw = random.Random(sample)
    return replace(_sized(trajectory(ordinal, sample), TOKENS, draw), text="five " * TOKENS)


def _sized(made: Trajectory, number: int, draw: random.Random) -> Trajectory:
    return replace(
        made,
        token_ids=tuple(draw.randrange(100_000) for _ in range(number)),
        actor_logprobs=tuple(-3 * draw.random() for _ in range(number)),
        loss_mask=tuple(int(at % 100 > 9) for at in range(number)),
        spans=(VersionSpan(start=0, end=number, lineage=0, step=0),),
    )


async def _write(home: Path, name: str, steps: int, groups: int, group: int, make) -> None:
    """A run of ``steps`` steps that consumed ``groups`` groups of ``group`` samples each."""
    folder = write_config(home, name)
    identity = msgspec.structs.replace(IDENTITY, name=name)
    ledger = SqliteLedger(folder / "ledger.db", identity, Limits())
    learner = (await ledger.register("learner", "learner")).incarnation
    actor = (await ledger.register("actor-0", "actor")).incarnation
    await ledger.publish_initial(learner, version(0), "chain-0-0")
    for step in range(1, steps + 1):
        here = range((step - 1) * groups, step * groups)
        await ledger.admit(_admission(here, group))
        request = claim_request("actor-0", actor, step=step - 1)
        leases = (await ledger.claim(request)).leases
        await ledger.submit("actor-0", actor, [_end(lease, make) for lease in leases])
        metrics = {"step": step, "reward": step / steps, "loss": 1 / step, "entropy": 1 / step}
        done = consume(here, group)
        await ledger.commit(step_commit(step, here, learner, metrics=metrics, dispositions=done))
    await ledger.close()


def _admission(ordinals: range, group: int) -> Admission:
    tasks = [
        NewTask(task_id=f"t/{one}", kind="train", ordinal=one, num_samples=group)
        for one in ordinals
    ]
    return Admission(tasks=tuple(tasks), next_admitted=ordinals.stop)


def _end(lease: Lease, make) -> AttemptEnd:
    made: Sequence[Trajectory] = [
        make(lease.task.ordinal, sample) for sample in range(lease.task.num_samples)
    ]
    return ended(lease, made)
