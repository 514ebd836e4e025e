"""Runs of a few rows that a real ledger holds, and a console over a real socket."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from ledger_kit import IDENTITY, claim_request, ended, started, step_commit, trajectory

from rollout.console.app import build_app
from rollout.console.door import Door
from rollout.ledger.records import AttemptEnd, Lease, Limits
from rollout.ledger.sqlite.ledger import SqliteLedger

SPEC: dict[str, Any] = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {"algorithm": {"grpo": {"promptsPerStep": 1, "groupSize": 2}}, "maxSteps": 9},
}


@dataclass(kw_only=True)
class Console:
    """A console that listens; ``links`` are what it has printed."""

    home: Path
    url: str
    client: aiohttp.ClientSession
    links: list[str] = field(default_factory=list)

    async def enter(self) -> None:
        async with self.client.get(self.links[-1]) as answer:
            assert answer.status == 200

    async def get(self, path: str, **more: Any) -> tuple[int, str]:
        async with self.client.get(self.url + path, **more) as answer:
            return answer.status, await answer.text()

    async def page(self, path: str) -> str:
        status, text = await self.get(path)
        assert status == 200, text
        return text


@asynccontextmanager
async def open_console(home: Path) -> AsyncIterator[Console]:
    listening = socket.create_server(("127.0.0.1", 0))
    door, links = Door(listening.getsockname()[1]), []
    runner = web.AppRunner(build_app(home, door, links.append), handler_cancellation=True)
    await runner.setup()
    await web.SockSite(runner, listening, shutdown_timeout=0.1).start()
    links.append(door.link)
    jar = aiohttp.CookieJar(unsafe=True)  # of an address, too
    async with aiohttp.ClientSession(cookie_jar=jar) as client:
        url = f"http://127.0.0.1:{door.port}"
        yield Console(home=home, url=url, client=client, links=links)
    await runner.cleanup()


def write_config(home: Path, name: str, spec: dict[str, Any] = SPEC) -> Path:
    folder = home / name
    folder.mkdir(parents=True)
    config = {
        "run": {"name": name, "namespace": "default", "uid": IDENTITY.uid},
        "spec": spec,
        "specDigest": IDENTITY.spec_digest,
        "layout": {
            "runDir": str(folder),
            "coordinatorUrl": "http://127.0.0.1:1",
            "tokenFile": str(folder / "token"),
            "objectsDir": str(folder / "objects"),
            "ledgerPath": str(folder / "ledger.db"),
        },
        "resolved": {
            "modelPath": str(folder / "model"),
            "modelDigest": IDENTITY.spec_digest,
            "grade": "Exact",
            "dtype": "Float32",
            "promptTokensMax": 6,
        },
    }
    (folder / "worker.json").write_text(json.dumps(config))
    return folder


def end_with(lease: Lease, text: str, prompt: str, ending: str = "stop") -> AttemptEnd:
    """A group whose samples all say ``text``."""
    made = [
        replace(
            trajectory(lease.task.ordinal, sample, step=lease.version_step),
            text=text,
            prompt_text=prompt,
            answer="wanted",
            ending=ending,
        )
        for sample in range(lease.task.num_samples)
    ]
    return ended(lease, made)


async def open_run(
    home: Path, name: str, texts: Sequence[str], spec: dict[str, Any] = SPEC, prompt: str = "ask"
) -> SqliteLedger:
    """A run whose steps trained on one group each, of these texts; its ledger is left open."""
    folder = write_config(home, name, spec)
    identity = msgspec.structs.replace(IDENTITY, name=name)
    ledger = SqliteLedger(folder / "ledger.db", identity, Limits())
    learner, actor = await started(ledger, len(texts))
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    ends = [end_with(lease, text, prompt) for lease, text in zip(leases, texts, strict=True)]
    await ledger.submit("actor-0", actor, ends)
    for step in range(1, len(texts) + 1):
        metrics = {"step": step, "reward": step / 10, "reward_by_source": {}}
        phases = {"train": 3.0, "wait": 1.0}
        await ledger.commit(
            step_commit(step, range(step - 1, step), learner, metrics=metrics, phase_seconds=phases)
        )
    return ledger


async def make_run(home: Path, name: str, texts: Sequence[str], **more: Any) -> None:
    """As ``open_run``, with nobody at it any more."""
    ledger = await open_run(home, name, texts, **more)
    await ledger.close()


class Page(HTMLParser):
    """What a browser would make of a page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]
