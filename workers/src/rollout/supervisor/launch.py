"""One run on this machine, from a prepared spec to its end.

Everything is started at once: the processes import while a child resolves the model and the data;
they go on when ``attempt.json`` appears.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rollout.common.atomic_files import replace_text
from rollout.common.child_processes import ProcessSpec
from rollout.errors import LedgerError, SpecError
from rollout.ledger.opening import open_reader, require_ledger
from rollout.objects.opening import require_place
from rollout.plugins.author import code_folders
from rollout.plugins.sidecar.named import find_plugin_files, require_reloadable
from rollout.protocol.status import Status
from rollout.runs.fetching.sources import fetch_sources
from rollout.runs.identity import spec_identity
from rollout.runs.plan.images import images_processes, require_images_for
from rollout.runs.plan.machine import require_room
from rollout.runs.plan.sandbox import require_sandbox_for
from rollout.runs.plan.servers import list_servers
from rollout.runs.prepare import PreparedRun
from rollout.runs.resolve import Resolution, ResolveRequest, Resolving
from rollout.runs.run_dir import RunDir, RunLock
from rollout.runs.snapshots.places import WhereToLook
from rollout.runs.snapshots.restoring import Restore, graded_logical
from rollout.runs.snapshots.returning import begin_or_return
from rollout.runs.worker_config import (
    choose_dtype,
    complete,
    contents_of,
    found_contents,
    with_dtype,
)
from rollout.supervisor.display.progress import Display
from rollout.supervisor.fork_server import Starts, open_starts
from rollout.supervisor.poller import StatusPoller
from rollout.supervisor.ports import read_metrics_port, reserved_port
from rollout.supervisor.processes import (
    Machine,
    plan_actor,
    plan_bounds,
    plan_machine,
    plan_processes,
    plan_threads,
)
from rollout.supervisor.supervisor import Supervisor
from rollout.supervisor.watch import Ended
from rollout.turns import ToolSpec
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import Layout, RunIdentity, WorkerConfig, WorkerOrder

if TYPE_CHECKING:
    from rollout.supervisor.cells import LearnerCell


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What a person asks for beside the manifest: where snapshots are looked for, and that plugins may change.

    ``in_place``: the snapshot's own run goes back to it, and no new run begins.
    """

    snapshots: WhereToLook = field(default_factory=WhereToLook)
    in_place: bool = False
    reloads_plugins: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One run to be started, or gone on with when ``previous`` is its configuration.

    ``models`` are folders of further models by role, where other runs have made them. ``restore`` is the snapshot that a
    new run begins with, or one with a ``previous`` goes back to. ``reloads_plugins``: new episodes are played with plugins as they lie there then.
    """

    prepared: PreparedRun
    run: RunDir
    model_path: Path | None = None
    models: Mapping[str, Path] = field(default_factory=dict)
    code_files: tuple[Path, ...] = ()
    previous: WorkerConfig | None = None
    restore: Restore | None = None
    reloads_plugins: bool = False

    @property
    def begins_with(self) -> Restore | None:
        """The snapshot of a new run."""
        return self.restore if self.previous is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a run ended and the last status that was seen."""

    ended: Ended
    status: Status | None


def launch(wanted: Launch, display: Display) -> Finished:
    """Run to the end. Raises SpecError, DataError and their like before anything has been recorded."""
    lock = RunLock(wanted.run)
    lock.acquire()
    try:
        require_images_for(wanted.prepared.spec)
        with (
            reserved_port(read_metrics_port(os.environ)) as port,
            _cell_of(wanted, display) as cell,
        ):
            return _launch(wanted, display, port, lock, cell)
    finally:
        lock.release()


def _launch(
    wanted: Launch, display: Display, port: int, lock: RunLock, cell: LearnerCell | None
) -> Finished:
    run, spec = wanted.run, wanted.prepared.spec
    if remark := require_place(spec.storage):
        display.note(remark)
    require_ledger(spec.storage)
    require_sandbox_for(spec)
    fetch_sources(spec)
    machine = observe_machine()
    url = f"http://127.0.0.1:{port}"
    run.attempt_config.unlink(missing_ok=True)
    server_tools = list_servers(spec)
    specs = plan_processes(spec, run, machine)
    starts = _open_starts(specs, run, machine, display, cell)
    resolving = Resolving(_to_resolve(wanted, server_tools), run.logs / "resolve.log")
    supervisor = Supervisor(
        specs,
        poller=(poller := StatusPoller(url, run.token)),
        display=display,
        bounds=plan_bounds(spec),
        lock_fileno=lock.fileno,
        plan_actor=partial(plan_actor, spec, run, machine),
        starts=starts,
    )
    try:
        supervisor.start()
        config = build_config(wanted, found := resolving.wait(), machine, url)
        require_room(
            with_dtype(spec, config.resolved.dtype),
            Path(found.model_path),
            found.prompt_tokens_max,
        )
        if found.num_bad:
            what = "training" if spec.train is not None else "the answers: see errors.jsonl"
            display.note(f"{found.num_bad} records are left out of {what}: {found.first_bad}")
        if wanted.restore is not None:
            resumed = wanted.previous is not None
            config, said = begin_or_return(wanted.restore, config, resumed=resumed)
            display.note(said)
        _write_begun(run, config)
        if cell is not None:
            cell.settle(specs[0], config, wanted.begins_with)
        ended = supervisor.run()
    except BaseException:
        if wanted.previous is not None:
            write_config(run, wanted.previous)
        raise
    finally:
        resolving.close()
        supervisor.kill()
    status = poller.latest
    try:
        write_result(run, ended, status)
    except OSError as error:
        display.note(f"{run.path}/result.json could not be written: {error}")
    return Finished(ended=ended, status=status)


def _to_resolve(wanted: Launch, server_tools: dict[str, tuple[ToolSpec, ...]]) -> ResolveRequest:
    return ResolveRequest(
        spec=wanted.prepared.spec.model_dump(mode="json", exclude_none=True),
        model_path=None if wanted.model_path is None else str(wanted.model_path),
        models={role: str(path) for role, path in wanted.models.items()},
        server_tools=server_tools,
    )


def _open_starts(
    specs: tuple[ProcessSpec, ...],
    run: RunDir,
    machine: Machine,
    display: Display,
    cell: LearnerCell | None,
) -> Starts:
    """How the processes are started; a learner that lives in a cell is forked from nobody."""
    forked = specs if cell is None else specs[1:]
    starts = open_starts(forked, run.logs, accelerators=machine.accelerators, note=display.note)
    if cell is None:
        return starts
    from rollout.supervisor.cells import CellStarts

    return CellStarts(starts, cell)


def _cell_of(wanted: Launch, display: Display) -> AbstractContextManager[LearnerCell | None]:
    """Where the learner lives that may be imaged; what images need is loaded for such a run only."""
    spec, restore = wanted.prepared.spec, wanted.begins_with
    imaged = restore is not None and restore.manifest.layer("process") is not None
    if not images_processes(spec) and not imaged:
        return nullcontext()
    from rollout.supervisor.cells import learner_cell

    return learner_cell(spec, wanted.run, restore, display.note)


def build_config(wanted: Launch, found: Resolution, machine: Machine, url: str) -> WorkerConfig:
    """The file that every process reads. Raises SpecError when a resumed run has become another."""
    prepared, run, previous = wanted.prepared, wanted.run, wanted.previous
    threads = plan_threads(prepared.spec, machine, found.num_parameters)
    order = WorkerOrder(
        run=RunIdentity(
            name=prepared.name,
            namespace=prepared.namespace,
            uid=str(uuid.uuid4()) if previous is None else previous.run.uid,
        ),
        attempt=max(int(time.time()), 0 if previous is None else previous.attempt + 1),
        spec=prepared.spec,
        layout=Layout(
            run_dir=str(run.path),
            coordinator_url=url,
            token_file=str(run.token),
            objects_dir=str(run.objects),
            ledger_path=str(run.ledger),
        ),
        threads=_choose_threads(wanted, threads),
        code_files=tuple(str(path) for path in wanted.code_files),
    )
    dtype = choose_dtype(prepared.spec, accelerated=machine.accelerators > 0)
    reloads = wanted.reloads_plugins or (previous is not None and previous.reloads_plugins)
    if reloads:
        require_reloadable(prepared.spec)
        found = with_plugins_of(previous, found)
    config = complete(order, found, dtype).model_copy(update={"reloads_plugins": reloads})
    if previous is not None:
        require_same_run(previous, config, prepared, found)
        if wanted.restore is None:
            _require_more_steps(config)
        if previous.resolved.grade == "Logical":
            config = graded_logical(config)
    return config


def _write_begun(run: RunDir, config: WorkerConfig) -> None:
    """Write the file that every process waits for, after what the run begins with has been copied. Raises SpecError."""
    if config.reloads_plugins:
        _keep_plugins(config)
    write_config(run, config)
    replace_text(run.attempt_config, run.worker_config.read_text())


def _keep_plugins(config: WorkerConfig) -> None:
    """Copy plugins as they lie there: half of an edit that comes later is no reason to end."""
    from rollout.actor.reloading.versions import keep_begun

    try:
        files = find_plugin_files(config.spec, code_folders(config))
        keep_begun(Path(config.layout.run_dir), files)
    except OSError as error:
        raise SpecError(f"--reload-plugins: the plugins cannot be copied: {error}") from error


def with_plugins_of(previous: WorkerConfig | None, found: Resolution) -> Resolution:
    """What was found, but that plugins which may change are those that the run began with."""
    began = {} if previous is None else previous.resolved.plugin_digests
    if began.keys() != found.plugin_digests.keys():
        return found
    return msgspec.structs.replace(found, plugin_digests=began)


def _choose_threads(wanted: Launch, found: int) -> int:
    """Sums depend on it: a run that goes on keeps what it began with."""
    if wanted.previous is not None:
        return wanted.previous.threads
    return found if wanted.restore is None else wanted.restore.manifest.header.run.threads


def _require_more_steps(config: WorkerConfig) -> None:
    layout = config.layout
    try:
        with open_reader(config.spec.storage, Path(layout.ledger_path), config.run.uid) as ledger:
            step = ledger.run().step
    except LedgerError:
        return  # there is none yet, or the coordinator says what is wrong with it
    require_more_steps(config.spec, step, Path(layout.run_dir).name)


def require_more_steps(spec: RolloutRunSpec, step: int, run: str) -> None:
    """Raise SpecError where a run that has committed ``step`` steps is to end before that."""
    wanted = spec.train.max_steps if spec.train is not None else None
    if wanted is not None and wanted < step:
        raise SpecError(
            f"spec.train.maxSteps: {wanted}, but this run has committed {step} steps: nothing is left to do;"
            f" to go on, set more than {step}, else see: rollout runs show {run}"
        )


def require_same_run(
    previous: WorkerConfig, config: WorkerConfig, prepared: PreparedRun, found: Resolution
) -> None:
    """Raise SpecError when a run would go on as another one than it began."""
    if previous.identity_format != config.identity_format:
        raise SpecError(
            f"this run began under identity format {previous.identity_format}, this version of rollout"
            f" writes format {config.identity_format}: go on with the version it began with, or start a"
            " new run without --resume"
        )
    if previous.spec_digest != config.spec_digest:
        raise SpecError(describe_drift(previous, prepared, found))


def describe_drift(previous: WorkerConfig, prepared: PreparedRun, found: Resolution) -> str:
    """Which part of a run's identity is not what it was when the run began: fields, and both digests."""
    before, after = spec_identity(previous.spec), spec_identity(prepared.spec)
    changed = [f"spec.{name}" for name in sorted(after) if before.get(name) != after[name]]
    began, now = contents_of(previous), found_contents(prepared, found)
    changed += [
        f"the content of {field} (was {began[field]}, is {digest})"
        for field, digest in now.items()
        if field in began and began[field] != digest
    ]
    return (
        f"this run cannot be gone on with: changed since it began: {', '.join(changed) or 'rollout itself'}; "
        "take the change back, or start a new run without --resume"
    )


def observe_machine() -> Machine:
    """This machine's facts."""
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    accelerators = len(list(Path("/dev").glob("nvidia[0-9]*"))) if sys.platform == "linux" else 0
    return plan_machine(os.environ, affinity, accelerators)


def write_config(run: RunDir, config: WorkerConfig) -> None:
    """Write ``worker.json``."""
    replace_text(run.worker_config, config.model_dump_json(exclude_none=True, indent=1))


def write_result(run: RunDir, ended: Ended, status: Status | None) -> None:
    """Write ``result.json``: what pipelines and ``--resume`` ask of a run that is over."""
    replace_text(run.path / "result.json", json.dumps(summarise(run, ended, status), indent=1))


def read_result(run: RunDir) -> dict[str, Any]:
    """``result.json``; empty when the run never came to an end."""
    try:
        return json.loads((run.path / "result.json").read_text())
    except (OSError, ValueError):
        return {}


def summarise(run: RunDir, ended: Ended, status: Status | None) -> dict[str, Any]:
    """A run's end as plain data."""
    seen = {} if status is None else msgspec.to_builtins(status)
    kept = ("step", "steps_max", "chain", "lineage", "reward", "loss", "tokens_per_second")
    return {
        "run": run.name,
        "run_dir": str(run.path),
        "exit_code": ended.exit_code,
        "reason": ended.reason,
        "message": ended.message,
        **{name: seen.get(name) for name in kept},
        "evaluations": seen.get("evaluations", []),
        "best": seen.get("best"),
        "anchor": seen.get("anchor"),
        "dispositions": seen.get("dispositions", {}),
        **({"infer": seen["infer"]} if seen.get("infer") else {}),
    }


def discard(run: RunDir) -> None:
    """Remove a run's directory in which no run ever began; any other is left as it is."""
    if not run.worker_config.exists() and not run.ledger.exists():
        shutil.rmtree(run.path, ignore_errors=True)
