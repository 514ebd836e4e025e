"""One ``rollout infer serve``: targets to engines to a table that the gateway reads, and what follows a run.

A version that a name has moved away from goes on until its last open answer has ended, and only then its engines are stopped:
a stream stays with the weights that it began with.
"""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rollout.errors import EngineError, RolloutError, SpecError
from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.inference.gateway.state import GatewaySettings
from rollout.inference.gateway.table import EndpointTable, write_table
from rollout.supervisor.serving.engines import EngineChoice, VersionEngines
from rollout.supervisor.serving.gateway_process import GatewayProcess, GatewayStatus
from rollout.supervisor.serving.targets import ServeTarget, current_step, make_ready

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
FOLLOW_SECONDS = 2.0
KEY_SECONDS = 30 * 24 * 3600.0
TARGETS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What ``rollout infer serve`` is told. ``start_seconds`` bounds the start of all engines."""

    targets: tuple[ServeTarget, ...]
    engine: EngineChoice
    host: str
    port: int
    keys: Path
    logs: Path
    drain_seconds: float
    start_seconds: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAddress:
    """Where it answers, what it serves, and the key that was made for this session."""

    url: str
    key: str
    models: tuple[str, ...]
    first: str


@dataclass(slots=True, kw_only=True, eq=False)
class _Served:
    """One target: what of it is served, what comes next, and what is on its way out."""

    target: ServeTarget
    current: VersionEngines
    following: VersionEngines | None = None
    leaving: list[VersionEngines] = field(default_factory=list)
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
        port = options.port or _free_port(options.host)
        for target in options.targets:
            self._served.append(_Served(target=target, current=self._begin(target)))
        self._publish()
        self._gateway = GatewayProcess(self._settings(port), options.logs / "gateway.log")
        self._wait_ready(stopped)
        key = self._make_key()
        names = tuple(self._build_table().names())
        first = self._served[0].current.model
        return ServingAddress(
            url=f"http://{options.host}:{port}/v1",
            key=key,
            models=names,
            first=(*first.aliases, first.name)[0],
        )

    def run(self, stopped: Callable[[], bool]) -> None:
        """Keep it alive until ``stopped``, then drain. Raises EngineError, CoordinatorError."""
        assert self._gateway is not None
        while not stopped():
            status = self._gateway.status()
            self._tend(status)
            time.sleep(POLL_SECONDS)

    def drain(self, hurried: Callable[[], bool]) -> None:
        """Let open requests end, as long as a drain may take; ``hurried``: cut them now."""
        gateway = self._gateway
        if gateway is None:
            return
        gateway.begin_drain()
        deadline = time.monotonic() + self._options.drain_seconds + 5.0
        while not gateway.ended and time.monotonic() < deadline and not hurried():
            time.sleep(POLL_SECONDS / 4)
        if not gateway.ended:
            gateway.kill()

    def close(self) -> None:
        """End all processes, forget this session's key, remove its folder. Idempotent."""
        if self._gateway is not None:
            self._gateway.stop()
        for one in self._served:
            for engines in (one.current, one.following, *one.leaving):
                if engines is not None:
                    engines.stop()
        if self._key_id:
            self._key_file.forget(lambda key: key.id == self._key_id)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, target: ServeTarget) -> VersionEngines:
        step = None
        if target.run is not None:
            step = current_step(target)
            if step is None:
                raise SpecError(
                    f"{target.text}: run {target.run.name} has no such version yet; wait for it"
                )
        model = make_ready(target, self._folder, step)
        return VersionEngines(model, self._options.engine, self._options.logs)

    def _settings(self, port: int) -> GatewaySettings:
        options = self._options
        return GatewaySettings(
            host=options.host,
            port=port,
            table=str(self._table),
            keys=str(options.keys),
            admin="",
            drain_seconds=options.drain_seconds,
        )

    def _make_key(self) -> str:
        now = time.time()
        key = self._key_file.create("serve", KeyLimits(), now=now, expires=now + KEY_SECONDS)
        self._key_id = key.split("-")[2]
        return key

    def _build_table(self) -> EndpointTable:
        versions = {one.current.model.name: one.current.version for one in self._served}
        aliases = {
            alias: one.current.model.name
            for one in self._served
            for alias in one.current.model.aliases
        }
        return EndpointTable(versions=tuple(versions.values()), aliases=aliases)

    def _publish(self) -> None:
        names = [one.current.model.name for one in self._served]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise SpecError(
                f"two models are named {double!r}: give one another name, as NAME=MODEL"
            )
        write_table(self._table, self._build_table())

    def _wait_ready(self, stopped: Callable[[], bool]) -> None:
        assert self._gateway is not None
        deadline = time.monotonic() + self._options.start_seconds
        while time.monotonic() < deadline and not stopped():
            status = self._gateway.status()
            for one in self._served:
                one.current.keep_alive(time.monotonic())
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
        for one in self._served:
            one.current.keep_alive(now)
            if one.target.follows:
                self._follow(one, status, now)

    def _follow(self, one: _Served, status: GatewayStatus | None, now: float) -> None:
        """Move a name on: start what the run has now beside what is served, then change over, then let the old go."""
        versions = {} if status is None else status.versions
        for engines in [old for old in one.leaving if status and old.model.name not in versions]:
            one.leaving.remove(engines)
            engines.stop()
        if one.following is not None:
            self._change_over(one, now)
        elif not one.leaving and now - one.looked_at > FOLLOW_SECONDS:
            one.looked_at = now
            one.following = self._look_ahead(one)

    def _look_ahead(self, one: _Served) -> VersionEngines | None:
        try:
            step = current_step(one.target)
            if step is None or one.current.model.name.endswith(f"@{step}"):
                return None
            model = make_ready(one.target, self._folder, step)
        except RolloutError as error:
            log.warning("target=%s is not followed this time: %s", one.target.text, error)
            return None
        return VersionEngines(model, self._options.engine, self._options.logs)

    def _change_over(self, one: _Served, now: float) -> None:
        assert one.following is not None
        try:
            one.following.keep_alive(now)
        except EngineError as error:
            log.warning("target=%s: the new version does not start: %s", one.target.text, error)
            one.following.stop()
            one.following = None
            return
        if one.following.healthy():
            one.leaving.append(one.current)
            one.current, one.following = one.following, None
            self._publish()
            log.info("target=%s serves version=%s", one.target.text, one.current.model.name)


def _all_ready(status: GatewayStatus, served: Sequence[_Served]) -> bool:
    names = [one.current.model.name for one in served]
    return all(name in status.versions and status.versions[name].ready for name in names)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
