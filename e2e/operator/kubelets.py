"""Nodes of which this process is the kubelet: pods that the scheduler places there run, have logs, and answer `exec`.

A pod's containers are nobody: what they have said is a file, and what `exec` asks of them runs on this machine, with a folder of
ours where the pod has the run's. Whether somebody may read a log or exec is the API server's to say, as everywhere.
"""

import asyncio
import json
import os
import ssl
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from puppets import ADDRESS, TICK_SECONDS, running_status
from urllib3.exceptions import HTTPError

from cluster.control.pki import build_authority
from cluster.control.ports import LOOPBACK
from rollout.cluster.coordinator import RUN_FOLDER

ROOM = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "4Ti", "pods": "110"}
BEAT_SECONDS = 2.0
"""A node that has not been heard of for ten seconds is lost."""
TAKES_WEBSOCKETS = "ExtendWebSocketsToKubelet"
"""What a node declares for the API server to hand streams on as they come, and not as SPDY."""
PROTOCOL = "v4.channel.k8s.io"
STDOUT, STDERR, STATUS = b"\x01", b"\x02", b"\x03"
LATER = {404, 409, 429, 500, 503}
"""Gone meanwhile, or asked again at the next look."""


@dataclass(slots=True, kw_only=True)
class Kubelet:
    """The kubelet of `nodes`: their names, each with what it has beside ROOM.

    Pods of these `namespaces` run, at `address`. `folder` lies in each where the run's own does; `logs` has `CONTAINER.log` and, of
    its life before, `CONTAINER.before.log`.
    """

    api: client.CoreV1Api
    namespaces: Sequence[str]
    nodes: Mapping[str, Mapping[str, str]]
    folder: Path
    logs: Path
    address: str = ADDRESS
    _port: int = 0
    _lost: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Register the nodes, and look after their pods from now on."""
        listens = threading.Event()
        self._begin(lambda: asyncio.run(self._serve(listens)))
        assert listens.wait(60), "the kubelet does not listen"
        for name, devices in self.nodes.items():
            self.api.create_node(_build_node(name, {**ROOM, **devices}, self._port))
        self._begin(self._work)
        self._begin(self._beat)

    def stop(self) -> None:
        """Take the nodes and the pods on them away."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        for name in self._alive():
            self.api.delete_node(name)
        for pod in self._pods():
            if pod.spec.node_name is not None:
                self._try(partial(self._delete, pod.metadata))

    def lose(self, name: str) -> None:
        """A node is gone from one moment to the next."""
        self._lost.add(name)
        self.api.delete_node(name)

    def _begin(self, work: Any) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            self._try(lambda: [self._look_after(pod) for pod in self._pods()])

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            for name in self._alive():
                status = {"status": {"conditions": [_ready()]}}
                self._try(partial(self.api.patch_node_status, name, status))

    def _alive(self) -> set[str]:
        return self.nodes.keys() - self._lost

    def _pods(self) -> list[Any]:
        lists = [self.api.list_namespaced_pod(one) for one in self.namespaces]
        return [pod for found in lists for pod in found.items]

    def _look_after(self, pod: Any) -> None:
        meta = pod.metadata
        if pod.spec.node_name not in self._alive():
            return
        if meta.deletion_timestamp is not None:
            self._try(partial(self._delete, meta))
        elif pod.status.phase == "Pending":
            status = {"status": running_status(pod, self.address)}
            patch = self.api.patch_namespaced_pod_status
            self._try(partial(patch, meta.name, meta.namespace, status))

    def _delete(self, meta: Any) -> None:
        self.api.delete_namespaced_pod(meta.name, meta.namespace, grace_period_seconds=0)

    def _try(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except ApiException as error:
            if error.status not in LATER:
                raise
        except (OSError, HTTPError):  # the API server is away
            pass

    async def _serve(self, listens: threading.Event) -> None:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._log)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, LOOPBACK, 0, ssl_context=_open_tls(self.logs))
        await site.start()
        self._port = runner.addresses[0][1]
        listens.set()
        await asyncio.to_thread(self._stop.wait)
        await runner.cleanup()

    async def _log(self, request: web.Request) -> web.Response:
        before = ".before" if request.query.get("previous") == "true" else ""
        path = self.logs / f"{request.match_info['container']}{before}.log"
        if not path.is_file():
            return web.Response(status=400, text=f"{path.stem}: there is no such container")
        lines = path.read_text().splitlines(keepends=True)
        return web.Response(text="".join(lines[-int(request.query.get("tailLines", 1000)) :]))

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        answer = web.WebSocketResponse(protocols=(PROTOCOL,))
        await answer.prepare(request)
        done = await self._run(request.query.getall("command"))
        code, said, complained = done
        for channel, text in ((STDOUT, said), (STDERR, complained), (STATUS, _end(code))):
            if text:
                await answer.send_bytes(channel + text)
        await answer.close()
        return answer

    async def _run(self, command: list[str]) -> tuple[int, bytes, bytes]:
        words = [one.replace(RUN_FOLDER, str(self.folder)) for one in command]
        program = [sys.executable, "-m", "rollout"] if words[0] == "rollout" else words[:1]
        process = await asyncio.create_subprocess_exec(
            *program, *words[1:], env=os.environ, stdout=-1, stderr=-1, stdin=-3
        )
        said, complained = await process.communicate()
        return process.returncode or 0, said, complained


def _end(code: int) -> bytes:
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    cause = {"reason": "ExitCode", "message": str(code)}
    failure = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return json.dumps({"metadata": {}, **failure}).encode()


def _open_tls(folder: Path) -> ssl.SSLContext:
    """A certificate of ours: the API server of a test asks no kubelet for one that it knows."""
    build_authority().issue("kubelet", names=[LOOPBACK]).write(folder, "kubelet")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "kubelet.crt", folder / "kubelet.key")
    return context


def _build_node(name: str, room: Mapping[str, str], port: int) -> dict[str, Any]:
    status = {
        "capacity": dict(room),
        "allocatable": dict(room),
        "addresses": [{"type": "InternalIP", "address": LOOPBACK}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "declaredFeatures": [TAKES_WEBSOCKETS],
        "conditions": [_ready()],
    }
    labels = {"kubernetes.io/hostname": name}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def _ready() -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    return {**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}
