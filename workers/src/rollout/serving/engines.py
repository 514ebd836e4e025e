"""The processes behind one version: embedded engines, vLLM's or SGLang's servers, kept alive within bounds.

Each listens on a socket in a folder of its own; SGLang's on a port of loopback, with a key. One that ends is started again with a growing pause; one that cannot live ends the
version. Must be called from one thread that outlives them (``rollout.common.child_processes``).
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import httpx
import msgspec

from rollout.common.child_processes import (
    ProcessSpec,
    end_processes,
    last_error,
    log_size,
    log_tail,
    start_process,
)
from rollout.common.restarts import GiveUp, ProcessEnd, RestartRules, plan_restart
from rollout.engines.served.slots import count_slots
from rollout.engines.sglang.serving_command import (
    LOOPBACK,
    PRIVATE,
    SglangSettings,
    find_python,
    write_command,
)
from rollout.engines.vllm.attached import (
    AttachedProcess,
    ask_for_gateways_server,
    server_folder,
)
from rollout.engines.vllm.command import plan_kv_cache_bytes, socket_path
from rollout.engines.vllm.server import GuardedProcess
from rollout.engines.vllm.serving_command import ServingSettings, build_serving_command
from rollout.errors import EngineError, SpecError
from rollout.inference.embedded_server.settings import EmbeddedSettings
from rollout.inference.gateway.table import EngineReplica, ServedVersion
from rollout.models.files import default_cache_dir
from rollout.models.pooled import TASKS, Task, read_pooled
from rollout.models.shapes import read_shape
from rollout.rendering.pairs import server_template
from rollout.serving.ports import free_port
from rollout.serving.targets import ReadyModel

EMBEDDED_MODULE = "rollout.entrypoints.serving.embedded"
STOP_SECONDS = 10.0
HEALTH_SECONDS_MAX = 2.0
EMBEDDED_SAMPLES = 16
CONTEXT_MAX = 32_768
"""Of a server, where nobody says more."""
SERVER_SEQUENCES = 256
"""That a server on a device decodes together, where nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Which engine serves, and how: for all models of one command.

    ``beside``: the folder shared with a container of the same pod that runs the vLLM server; one replica, and the kubelet
    keeps it alive. ``memory_fraction`` is of a device's memory. ``task`` None: what each model's files say that it is for.
    """

    kind: Literal["embedded", "vllm", "sglang"] = "embedded"
    replicas: int = 1
    threads: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    max_num_seqs: int | None = None
    max_model_length: int | None = None
    tool_parser: str | None = None
    vllm_arguments: tuple[str, ...] = ()
    traces: str = ""
    tensor_parallel: int = 1
    memory_fraction: float = 0.9
    beside: Path | None = None
    task: Task | None = None


class PlannedEngine(NamedTuple):
    """What starts an engine, how many requests it answers at once, where it listens, and the key that it asks for."""

    start: Callable[[], EngineProcess]
    slots: int
    socket: str
    key: str = ""


class EngineProcess(Protocol):
    """One engine's processes."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    def stop(self) -> None:
        """End it. Blocks; idempotent."""
        ...


class _EmbeddedProcess:
    """An embedded engine; its settings are a file in its folder."""

    def __init__(self, spec: ProcessSpec) -> None:
        self._process = start_process(spec)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        end_processes([self._process], grace_seconds=STOP_SECONDS)


@dataclass(slots=True, kw_only=True)
class _Kept:
    """One replica: how to start it, and its life so far."""

    replica: EngineReplica
    log: Path
    start: Callable[[], EngineProcess]
    process: EngineProcess
    began_at: float
    log_start: int
    endings: list[ProcessEnd] = field(default_factory=list)
    again_at: float | None = None


class VersionEngines:
    """The engines of one version, running."""

    def __init__(self, model: ReadyModel, choice: EngineChoice, logs: Path) -> None:
        require_task(choice.kind, model)
        self.model = model
        self.choice = choice
        self._folder = Path(tempfile.mkdtemp(prefix="rollout-"))
        self._logs = logs
        self._kept: list[_Kept] = []
        try:
            for place in range(choice.replicas):
                self._kept.append(self._begin(place))
        except BaseException:
            self.stop()
            raise

    @property
    def version(self) -> ServedVersion:
        """How the gateway sees it."""
        return ServedVersion(
            name=self.model.name,
            digest=self.model.digest,
            engine=self.choice.kind,
            replicas=tuple(one.replica for one in self._kept),
            created=self.model.created,
            context_tokens=self.model.context_tokens,
            salted=WAYS[self.choice.kind].salted,
            task=self.model.task,
        )

    def keep_alive(self, now: float) -> None:
        """Start again what has ended. Raises EngineError for one that cannot live."""
        for one in self._kept:
            if one.again_at is not None:
                self._start_again(one, now)
            elif (code := one.process.exit_code) is not None:
                self._note_end(one, code, now)

    def healthy(self) -> bool:
        """Whether every engine answers its health check."""
        return all(_answers(one.replica.socket) for one in self._kept)

    def stop(self) -> None:
        """End all and remove their folder. Idempotent."""
        for one in self._kept:
            one.process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, place: int) -> _Kept:
        folder = self._folder / str(place)
        folder.mkdir(mode=0o700)
        name = f"{self.model.name.replace('/', '_')}-{place}"
        log = self._logs / f"{name}.log"
        planned = WAYS[self.choice.kind].plan(self, folder, log)
        replica = EngineReplica(
            name=name, socket=planned.socket, slots=planned.slots, key=planned.key
        )
        log_start = log_size(log)
        return _Kept(
            replica=replica,
            log=log,
            start=planned.start,
            process=planned.start(),
            began_at=time.monotonic(),
            log_start=log_start,
        )

    def plan_embedded(self, folder: Path, log: Path) -> PlannedEngine:
        """An embedded engine; it decodes so many samples at once."""
        samples = self.choice.max_num_seqs or EMBEDDED_SAMPLES
        settings = EmbeddedSettings(
            model=str(self.model.folder),
            socket=str(socket_path(folder)),
            name=self.model.name,
            threads=self.choice.threads,
            task=self.model.task,
            samples_max=samples,
        )
        config = folder / "engine.json"
        config.write_bytes(msgspec.json.encode(settings))
        spec = ProcessSpec(
            name=folder.name,
            role="engine",
            module=EMBEDDED_MODULE,
            arguments=("--config", str(config)),
            log=log,
        )
        return PlannedEngine(lambda: _EmbeddedProcess(spec), samples, settings.socket)

    def plan_vllm(self, folder: Path, log: Path) -> PlannedEngine:
        """A vLLM server."""
        settings = self._vllm_settings()
        if (shared := self.choice.beside) is not None:
            ask_for_gateways_server(settings, shared)
            socket = str(socket_path(server_folder(shared)))
            return PlannedEngine(lambda: AttachedProcess(shared), settings.slots, socket)
        argv, env = build_serving_command(settings, folder)

        def start() -> EngineProcess:
            socket_path(folder).unlink(missing_ok=True)
            return GuardedProcess(
                argv, env, log_path=log, work_dir=folder, grace_seconds=STOP_SECONDS
            )

        return PlannedEngine(start, settings.slots, str(socket_path(folder)))

    def plan_sglang(self, folder: Path, log: Path) -> PlannedEngine:
        """An SGLang server of another environment. Raises SpecError where there is none, or no device is to be used."""
        choice, model = self.choice, self.model
        if choice.device != "cuda":
            raise SpecError(
                "the sglang engine: SGLang's release has no build for processors; add --device cuda"
            )
        seqs = choice.max_num_seqs or SERVER_SEQUENCES
        slots = count_slots(seqs)
        settings = SglangSettings(
            python=find_python(os.environ),
            model_dir=model.folder,
            name=model.name,
            port=free_port(LOOPBACK),
            key=secrets.token_hex(32),
            max_model_length=choice.max_model_length or min(model.context_tokens, CONTEXT_MAX),
            max_num_seqs=seqs,
            queued_max=slots,
            tensor_parallel=choice.tensor_parallel,
            threads=choice.threads,
            tool_parser=choice.tool_parser,
            cache_dir=default_cache_dir() / "sglang",
        )
        argv, env = write_command(settings, folder)
        log.touch(mode=PRIVATE)

        def start() -> EngineProcess:
            return GuardedProcess(
                argv, env, log_path=log, work_dir=folder, grace_seconds=STOP_SECONDS
            )

        return PlannedEngine(start, slots, f"{LOOPBACK}:{settings.port}", settings.key)

    def _vllm_settings(self) -> ServingSettings:
        choice, model = self.choice, self.model
        pooled = None if model.task == "generate" else read_pooled(model.folder, model.task)
        length = choice.max_model_length or min(model.context_tokens, CONTEXT_MAX)
        cpu = choice.device == "cpu"
        seqs = choice.max_num_seqs or (16 if cpu else SERVER_SEQUENCES)
        cache = 0
        if cpu and not (pooled is not None and pooled.looks_ahead):  # an encoder has no cache
            elements = read_shape(model.folder).kv_elements_per_token
            cache = plan_kv_cache_bytes(elements, "float32", length=length, num_seqs=seqs)
        return ServingSettings(
            model_dir=self.model.folder,
            name=self.model.name,
            max_model_length=length,
            device=choice.device,
            threads=choice.threads,
            max_num_seqs=seqs,
            kv_cache_bytes=cache,
            memory_fraction=0.2 if cpu else choice.memory_fraction,
            tensor_parallel=choice.tensor_parallel,
            cache_dir=None if choice.beside is not None else default_cache_dir() / "vllm",
            tool_parser=choice.tool_parser,
            extra_arguments=choice.vllm_arguments,
            traces=choice.traces,
            pooled=pooled,
            pair_template=_pair_template(model) if pooled and not pooled.looks_ahead else "",
        )

    def _note_end(self, one: _Kept, code: int, now: float) -> None:
        one.process.stop()
        said = log_tail(one.log, start=one.log_start)
        one.endings.append(
            ProcessEnd(started_at=one.began_at, ended_at=now, code=code, error=last_error(said))
        )
        decision = plan_restart(one.replica.name, one.endings, RestartRules())
        if isinstance(decision, GiveUp):
            raise EngineError(
                f"engine {one.replica.name}: {decision.reason}; see {one.log}, which ends:\n{said}"
            )
        one.again_at = decision.at

    def _start_again(self, one: _Kept, now: float) -> None:
        assert one.again_at is not None
        if now >= one.again_at:
            one.log_start = log_size(one.log)
            one.process, one.began_at, one.again_at = one.start(), now, None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWay:
    """How one engine serves: how a replica is planned; whether it takes a cache salt.

    ``flags``: those of ``rollout infer serve`` that it has beyond what all have. ``tasks``: what it can do, one for each server.
    """

    plan: Callable[[VersionEngines, Path, Path], PlannedEngine]
    salted: bool
    flags: frozenset[str] = frozenset()
    tasks: tuple[Task, ...] = TASKS


SERVER_FLAGS = frozenset({"--device", "--max-model-length", "--tool-call-parser"})
WAYS = {
    "embedded": ServingWay(plan=VersionEngines.plan_embedded, salted=False),
    "vllm": ServingWay(
        plan=VersionEngines.plan_vllm, salted=True, flags=SERVER_FLAGS | {"--vllm-argument"}
    ),
    "sglang": ServingWay(
        plan=VersionEngines.plan_sglang, salted=True, flags=SERVER_FLAGS, tasks=("generate",)
    ),
}
"""By the engine's name."""


def require_task(kind: str, model: ReadyModel) -> None:
    """Raise SpecError where an engine does not do what a model is for."""
    done = WAYS[kind].tasks
    if model.task not in done:
        raise SpecError(
            f"{model.name}: the {kind} engine does {', '.join(done)}, and not {model.task}"
        )


def _pair_template(model: ReadyModel) -> str:
    return (server_template(model.folder) or "") if model.task == "score" else ""


def _answers(socket: str) -> bool:
    uds, host = (socket, "engine") if socket.startswith("/") else (None, socket)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=uds), trust_env=False) as client:
            return client.get(f"http://{host}/health", timeout=HEALTH_SECONDS_MAX).is_success
    except httpx.HTTPError:
        return False
