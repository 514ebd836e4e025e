"""One ``rollout infer serve``: targets to engines to a table that the gateway reads, and what follows a run.

A version that a name has moved away from goes on until its last open answer has ended, and only then its engines are stopped:
a stream stays with the weights that it began with.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rollout.errors import EngineError, RolloutError, SpecError
from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.inference.gateway.state import GatewaySettings
from rollout.inference.gateway.table import EndpointTable, write_table
from rollout.models.pooled import Task
from rollout.serving.engines import EngineChoice, VersionEngines
from rollout.serving.gateway_process import GatewayProcess, GatewayStatus
from rollout.serving.ports import free_port
from rollout.serving.targets import ReadyModel, ServeTarget, make_newest, make_ready

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
FOLLOW_SECONDS = 2.0
FAILED_SECONDS = 28.0
"""More, after a version that could not be had or does not start: each try fetches it whole."""
KEY_SECONDS = 30 * 24 * 3600.0
TARGETS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What ``rollout infer serve`` is told. ``start_seconds`` bounds the start of all engines.

    ``tls``: folder of the certificate that ``tls_port`` is served with, beside ``port``.
    ``leave_seconds``, ``canary``: as a gateway's. ``makes_key``: one for this session, printed; else the folder of keys has all there are.
    """

    targets: tuple[ServeTarget, ...]
    engine: EngineChoice
    host: str
    port: int
    keys: Path
    logs: Path
    drain_seconds: float
    log_requests: bool = False
    log_bodies: bool = False
    log_days: int = 30
    traces_share: float = 1.0
    files: Path | None = None
    start_seconds: float = 900.0
    request_seconds: float = 600.0
    leave_seconds: float = 0.0
    canary: Path | None = None
    tls_port: int = 0
    tls: Path | None = None
    asks_for_keys: bool = True
    makes_key: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAddress:
    """Where it answers, what it serves, and the key that was made for this session; ``task`` is the first model's."""

    url: str
    key: str
    models: tuple[str, ...]
    first: str
    task: Task


@dataclass(slots=True, kw_only=True, eq=False)
class _Served:
    """One target: the version that its names mean, and the one that they will mean next."""

    target: ServeTarget
    current: ReadyModel
    following: ReadyModel | None = None
    looked_at: float = 0.0


class ServingSession:
    """Engines and gateway of one command. Use as a context manager; ``run`` until told to stop."""

    def __init__(self, options: ServeOptions) -> None:
        if not 0 < len(options.targets) <= TARGETS_MAX:
            raise SpecError(f"expected 1 to {TARGETS_MAX} models, got {len(options.targets)}")
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="rollout-serve-"))
        self._table = self._folder / "table.json"
        self._key_file = KeyFile(options.keys)
        self._served: list[_Served] = []
        self._engines: dict[str, VersionEngines] = {}
        self._leaving: list[VersionEngines] = []
        self._gateway: GatewayProcess | None = None
        self._key_id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, stopped: Callable[[], bool]) -> ServingAddress:
        """Start everything and wait until every version answers. Raises RolloutError; ``close`` then cleans up."""
        options = self._options
        options.logs.mkdir(parents=True, exist_ok=True)
        port = options.port or free_port(options.host)
        for target in options.targets:
            model = self._first_model(target)
            self._served.append(_Served(target=target, current=model))
            self._require_engines(model)
        self._publish()
        # The key is made before the gateway reads its keys: the first request may come at once.
        key = self._make_key() if options.makes_key else ""
        self._gateway = GatewayProcess(self._settings(port), options.logs / "gateway.log")
        self._wait_ready(stopped)
        names = tuple(self._build_table().names())
        first = self._served[0].current
        return ServingAddress(
            url=f"http://{options.host}:{port}/v1",
            key=key,
            models=names,
            first=(*first.aliases, first.name)[0],
            task=first.task,
        )

    def run(self, stopped: Callable[[], bool], tend: Callable[[], None] = lambda: None) -> None:
        """Keep it alive until ``stopped``; ``tend`` is called now and then. Raises EngineError, CoordinatorError."""
        assert self._gateway is not None
        while not stopped():
            status = self._gateway.status()
            self._tend(status)
            tend()
            time.sleep(POLL_SECONDS)

    def drain(self, hurried: Callable[[], bool]) -> None:
        """Let open requests end, as long as a drain may take; ``hurried``: cut them now."""
        gateway = self._gateway
        if gateway is None:
            return
        gateway.begin_drain()
        seconds = self._options.leave_seconds + self._options.drain_seconds
        deadline = time.monotonic() + seconds + 5.0
        while not gateway.ended and time.monotonic() < deadline and not hurried():
            time.sleep(POLL_SECONDS / 4)
        if not gateway.ended:
            gateway.kill()

    def close(self) -> None:
        """End all processes, forget this session's key, remove its folder. Idempotent."""
        if self._gateway is not None:
            self._gateway.stop()
        for engines in (*self._engines.values(), *self._leaving):
            engines.stop()
        if self._key_id:
            self._key_file.forget(lambda key: key.id == self._key_id)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _first_model(self, target: ServeTarget) -> ReadyModel:
        task = self._options.engine.task
        if target.run is None and target.feed is None:
            return make_ready(target, self._folder, task=task)
        model = make_newest(target, self._folder, None, task)
        if model is None:
            raise SpecError(f"{target.text}: the run has no such version yet; wait for it")
        return model

    def _require_engines(self, model: ReadyModel) -> None:
        """Start what answers with this version, where nothing does. Two names of one version share its engines."""
        known = self._engines.get(model.name)
        if known is None:
            options = self._options
            self._engines[model.name] = VersionEngines(model, options.engine, options.logs)
        elif known.model.digest != model.digest:
            raise SpecError(
                f"two models are named {model.name!r}: give one another name, as NAME=MODEL"
            )

    def _settings(self, port: int) -> GatewaySettings:
        options = self._options
        return GatewaySettings(
            host=options.host,
            port=port,
            table=str(self._table),
            keys=str(options.keys),
            admin="",
            drain_seconds=options.drain_seconds,
            leave_seconds=options.leave_seconds,
            request_seconds=options.request_seconds,
            is_open=not options.asks_for_keys,
            log=str(options.logs / "requests") if options.log_requests else "",
            log_bodies=options.log_bodies,
            log_days=options.log_days,
            traces=options.engine.traces,
            traces_share=options.traces_share,
            files="" if options.files is None else str(options.files),
            canary="" if options.canary is None else str(options.canary),
            tls_port=options.tls_port,
            tls="" if options.tls is None else str(options.tls),
        )

    def _make_key(self) -> str:
        now = time.time()
        key = self._key_file.create("serve", KeyLimits(), now=now, expires=now + KEY_SECONDS)
        self._key_id = key.split("-")[2]
        return key

    def _build_table(self) -> EndpointTable:
        names = dict.fromkeys(one.current.name for one in self._served)
        aliases = {alias: one.current.name for one in self._served for alias in one.current.aliases}
        return EndpointTable(
            versions=tuple(self._engines[name].version for name in names), aliases=aliases
        )

    def _publish(self) -> None:
        write_table(self._table, self._build_table())

    def _wait_ready(self, stopped: Callable[[], bool]) -> None:
        assert self._gateway is not None
        deadline = time.monotonic() + self._options.start_seconds
        while time.monotonic() < deadline and not stopped():
            status = self._gateway.status()
            for engines in self._engines.values():
                engines.keep_alive(time.monotonic())
            if status is not None and _all_ready(status, self._served):
                return
            time.sleep(POLL_SECONDS)
        if stopped():
            raise KeyboardInterrupt
        raise EngineError(
            f"engines were not up within {self._options.start_seconds:g} s; see {self._options.logs}"
        )

    def _tend(self, status: GatewayStatus | None) -> None:
        now = time.monotonic()
        for name in {one.current.name for one in self._served}:
            self._engines[name].keep_alive(now)
        for one in self._served:
            if one.target.follows:
                self._follow(one, now)
        self._let_go(status)

    def _follow(self, one: _Served, now: float) -> None:
        """Move a name on: start what the run has now beside what is served, then change over."""
        if one.following is not None:
            self._change_over(one, now)
        elif not self._leaving and now - one.looked_at > FOLLOW_SECONDS:
            one.looked_at = now
            one.following = self._look_ahead(one)

    def _look_ahead(self, one: _Served) -> ReadyModel | None:
        try:
            task = self._options.engine.task
            model = make_newest(one.target, self._folder, one.current, task)
            if model is not None:
                self._require_engines(model)
        except RolloutError as error:
            log.warning("target=%s is not followed this time: %s", one.target.text, error)
            one.looked_at += FAILED_SECONDS
            return None
        return model

    def _change_over(self, one: _Served, now: float) -> None:
        assert one.following is not None
        engines = self._engines[one.following.name]
        try:
            engines.keep_alive(now)
        except EngineError as error:
            log.warning("target=%s: the new version does not start: %s", one.target.text, error)
            one.following, one.looked_at = None, now + FAILED_SECONDS
            return
        if engines.healthy():
            one.current, one.following = one.following, None
            self._publish()
            log.info("target=%s serves version=%s", one.target.text, one.current.name)

    def _let_go(self, status: GatewayStatus | None) -> None:
        """Stop engines that no name means and that no open request has."""
        meant = {one.current.name for one in self._served}
        meant |= {one.following.name for one in self._served if one.following is not None}
        for name in self._engines.keys() - meant:
            self._leaving.append(self._engines.pop(name))
        for engines in tuple(self._leaving):
            sockets = {one.socket for one in engines.version.replicas}
            if status is not None and not sockets & set(status.sockets):
                self._leaving.remove(engines)
                engines.stop()
                if engines.model.folder.is_relative_to(
                    self._folder
                ):  # an export of ours, never a user's model
                    shutil.rmtree(engines.model.folder, ignore_errors=True)


def _all_ready(status: GatewayStatus, served: Sequence[_Served]) -> bool:
    names = [one.current.name for one in served]
    return all(name in status.versions and status.versions[name].ready for name in names)
