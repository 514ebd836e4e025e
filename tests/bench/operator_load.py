"""The user's side: makes objects and releases runs, sixteen calls at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from operator_sets import PATHS

from rollout_operator.kube.config import Connection, open_session, read_kubeconfig

AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An object that was made."""

    name: str
    namespace: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody with a kubeconfig."""

    kubeconfig: Path

    def make(self, kind: str, namespace: str, documents: Iterable[dict[str, Any]]) -> list[Made]:
        """Create objects."""

        async def create(call: _Call, document: dict[str, Any]) -> Made:
            answer = await call("POST", PATHS[kind].format(namespace), document)
            meta = answer["metadata"]
            return Made(name=meta["name"], namespace=namespace, uid=meta["uid"])

        return self._each(create, list(documents))

    def release(self, runs: Sequence[Made]) -> None:
        """Let suspended runs start."""

        async def patch(call: _Call, run: Made) -> None:
            path = f"{PATHS['run'].format(run.namespace)}/{run.name}"
            await call("PATCH", path, {"spec": {"suspend": False}})

        self._each(patch, runs)

    def _each(self, work: Any, items: Sequence[Any]) -> list[Any]:
        return asyncio.run(_gather(read_kubeconfig(self.kubeconfig), work, items))


_Call = Callable[[str, str, dict[str, Any]], Awaitable[Any]]


async def _gather(connection: Connection, work: Any, items: Sequence[Any]) -> list[Any]:
    async with open_session(connection) as session:
        call = _caller(session, connection.server)
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(item: Any) -> Any:
            async with gate:
                return await work(call, item)

        return await asyncio.gather(*(one(item) for item in items))


def _caller(session: aiohttp.ClientSession, server: str) -> _Call:
    async def call(method: str, path: str, body: dict[str, Any]) -> Any:
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Content-Type": f"application/{kind}"}
        async with session.request(
            method, f"{server}/{path}", data=json.dumps(body), headers=headers
        ) as response:
            text = await response.text()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {text[:500]}")
            return json.loads(text)

    return call
