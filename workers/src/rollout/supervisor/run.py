"""A manifest, run on this machine: every run in it, in order, resumed where that was asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rollout.errors import RolloutError, SpecError
from rollout.models.roles import further_models
from rollout.runs.manifest import Document, load_documents
from rollout.runs.pipeline import (
    find_output,
    materialise_model,
    order_runs,
    read_snapshot,
    source_run,
)
from rollout.runs.prepare import PreparedRun, prepare_run
from rollout.runs.run_dir import (
    RunDir,
    create_run_dir,
    find_run_dir,
    find_run_dirs,
    prepare_run_dir,
    runs_home,
)
from rollout.runs.snapshots.places import read_config
from rollout.runs.snapshots.restoring import Restore
from rollout.runs.snapshots.returning import find_folder
from rollout.runs.snapshots.wanted import choose_restore, find_restores
from rollout.runs.validation import apply_overrides, apply_values
from rollout.supervisor.display.progress import Display, Mode, make_display
from rollout.supervisor.functions import save_functions
from rollout.supervisor.launch import (
    Finished,
    Launch,
    LaunchOptions,
    discard,
    launch,
    read_result,
    require_more_steps,
    summarise,
)
from rollout.supervisor.watch import EXIT_INTERRUPTED, EXIT_OK, Ended
from rollout_api.v1alpha1.common import FromRun

RewardFunction = Callable[..., Sequence[float | Mapping[str, float]]]
Report = Callable[[Path], object]
"""Writes what is to be read of a run that has ended, from its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How the last run of a manifest ended, and where it lies."""

    exit_code: int
    run_dir: Path
    summary: dict[str, Any]


def run_manifest(
    manifest: str | Path | Sequence[Document],
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    resume: str | None = None,
    run_dir: Path | None = None,
    progress: bool | Mode = True,
    rewards: Sequence[RewardFunction] | None = None,
    report: Report | None = None,
    asked: LaunchOptions | None = None,
) -> RunResult:
    """Run every run of a manifest, each after the one it starts from; stop at the first that fails.

    ``overrides`` are ``path=value`` items, or values by path. ``resume`` is ``Latest`` or the name of
    a run's directory: runs that ended well are taken as they are, an interrupted one is gone on
    with. Or it is the id of a snapshot, which a new run begins with, looked for where ``asked`` says (None: in the runs of this
    machine), or with ``asked.in_place`` its own run goes back to; a run that names one by ``restoreFrom.object`` begins with that. With several runs ``run_dir`` is the folder of
    their folders. ``report`` writes the page of a run that has ended, from its folder.
    Raises SpecError and DataError for bad input; a run that fails is told by its exit code.
    """
    documents = _load(manifest, overrides)
    if any((one.data.get("spec") or {}).get("serve") is not None for one in documents):
        raise SpecError("spec.serve: a service does not end by itself; start it by rollout run -f")
    ordered = order_runs(documents)
    asked = asked or LaunchOptions()
    restores = find_restores(
        [prepare_run(one) for one in ordered], resume, asked.snapshots, in_place=asked.in_place
    )
    resume = find_folder(resume, restores, run_dir, in_place=asked.in_place)
    mode: Mode = progress if isinstance(progress, str) else ("auto" if progress else "none")
    home = _Home(run_dir=run_dir, several=len(ordered) > 1)
    produced: dict[str, RunDir] = {}
    result: RunResult | None = None
    for document in ordered:
        prepared = prepare_run(document)
        source = _find_source(document, produced)
        others = _find_others(document, prepared, produced)
        earlier = home.place(prepared.name, resume, source)
        restore = choose_restore(prepared, earlier, restores, asked.snapshots)
        run = home.make(prepared.name) if earlier is None else prepare_run_dir(earlier.path)
        result = None if earlier is None or restore is not None else _reuse(earlier, prepared)
        if result is None:
            stage = _Stage(
                document=document,
                run=run,
                source=source,
                others=others,
                resumed=earlier is not None,
                restore=restore,
                reloads=asked.reloads_plugins,
            )
            result = _run_stage(stage, mode, rewards, report)
        result = _hand_over(result, prepared, mode)
        if result.exit_code != EXIT_OK:
            return result
        produced[prepared.name] = run
    assert result is not None
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One run of a manifest, placed. ``source`` is the run whose weights it starts from.

    ``others`` are the runs that made its further models, by role; ``restore`` is the snapshot that it begins with or, where
    it is ``resumed``, goes back to.
    """

    document: Document
    run: RunDir
    source: RunDir | None
    others: Mapping[str, RunDir]
    resumed: bool
    restore: Restore | None
    reloads: bool


def _run_stage(
    stage: _Stage,
    mode: Mode,
    rewards: Sequence[RewardFunction] | None,
    report: Report | None,
) -> RunResult:
    run = stage.run
    display = make_display(mode, run.name)
    try:
        finished = _launch_stage(stage, display, rewards)
        _tell_end(finished, run, display)
        if finished.status is not None and report is not None:
            _write_report(report, run, display)
    finally:
        display.close()
        discard(run)
    summary = summarise(run, finished.ended, finished.status)
    return RunResult(exit_code=finished.ended.exit_code, run_dir=run.path, summary=summary)


def _hand_over(result: RunResult, prepared: PreparedRun, mode: Mode) -> RunResult:
    """Export the model of a run that ended well, where its spec says so; a repeat finds it whole."""
    if result.exit_code != EXIT_OK or find_output(prepared.spec) is None:
        return result
    from rollout.runs.export.output import export_output

    display = make_display(mode, prepared.name)
    try:
        exported = export_output(result.run_dir, prepared.spec)
        if exported is not None:
            display.note(f"model of step {exported.lineage.step} exported to {exported.folder}")
    except RolloutError as error:
        display.note(
            f"the run has ended well, and its model is not exported: {error}; once corrected, the same command and"
            f" --resume {result.run_dir.name}, or rollout model export {result.run_dir.name} --to PLACE"
        )
        return replace(result, exit_code=error.exit_code)
    finally:
        display.close()
    return result


def _launch_stage(
    stage: _Stage, display: Display, rewards: Sequence[RewardFunction] | None
) -> Finished:
    run, document = stage.run, stage.document
    saved = None if rewards is None else save_functions(rewards, run.code)
    prepared = prepare_run(document, None if saved is None else saved.rewards)
    previous = read_config(run) if stage.resumed else None
    if find_output(prepared.spec) is not None:
        from rollout.runs.export.output import require_output

        require_output(prepared.spec, resumed=stage.resumed)
    _record(stage, prepared)
    verb = "resuming" if stage.resumed else "running"
    display.note(f"{verb} {prepared.name} in {run.path}")
    wanted = Launch(
        prepared=prepared,
        run=run,
        model_path=None if stage.source is None else _take_policy(stage.source, prepared, run),
        models=_take_models(stage.others, prepared, run),
        code_files=() if saved is None else saved.files,
        previous=previous,
        restore=stage.restore,
        reloads_plugins=stage.reloads,
    )
    try:
        return launch(wanted, display)
    except KeyboardInterrupt:
        ended = Ended(exit_code=EXIT_INTERRUPTED, reason="Interrupted", message="before it began")
        return Finished(ended=ended, status=None)


def _tell_end(finished: Finished, run: RunDir, display: Display) -> None:
    """Say how the run ended and what to do next."""
    ended = finished.ended
    if ended.exit_code == EXIT_INTERRUPTED and run.worker_config.exists():
        display.note(
            f"interrupted, state saved; go on with the same command and --resume {run.name}"
        )
    elif ended.exit_code != EXIT_OK:
        display.note(f"{ended.reason}: {ended.message}")
        display.note(
            "what was committed is kept; go on, once corrected, with the same command and "
            f"--resume {run.name}"
        )


def _write_report(report: Report, run: RunDir, display: Display) -> None:
    try:
        report(run.path)
    except Exception as error:  # noqa: BLE001 - the run has ended; nothing about its report may change how
        display.note(
            f"the report could not be written ({error!r}); try: rollout runs report {run.name}"
        )


def _find_source(document: Document, produced: Mapping[str, RunDir]) -> RunDir | None:
    """The run that ``model.fromRun`` means: of this file, else the newest of that name here."""
    name = source_run(document.data)
    return None if name is None else _find_run(document, "spec.model", name, produced)


def _find_others(
    document: Document, prepared: PreparedRun, produced: Mapping[str, RunDir]
) -> dict[str, RunDir]:
    """The runs that made the further models, by role."""
    return {
        one.role: _find_run(document, one.field, one.source.from_run.name, produced)
        for one in further_models(prepared.spec)
        if one.source.from_run is not None
    }


def _find_run(document: Document, field: str, name: str, produced: Mapping[str, RunDir]) -> RunDir:
    if name in produced:
        return produced[name]
    runs = [run for run in find_run_dirs(_home(), name) if run.worker_config.exists()]
    if not runs:
        raise SpecError(
            f"{document.source}: {field}.fromRun: no run {name!r} in {_home()}; run it first, or "
            "put it into the same file"
        )
    return runs[-1]


def _take_policy(source: RunDir, prepared: PreparedRun, run: RunDir) -> Path:
    wanted = prepared.spec.model.from_run
    assert wanted is not None
    return _take_model(source, wanted, run.model)


def _take_models(
    others: Mapping[str, RunDir], prepared: PreparedRun, run: RunDir
) -> dict[str, Path]:
    wanted = {one.role: one.source.from_run for one in further_models(prepared.spec)}
    return {
        role: _take_model(source, from_run, run.path / "models" / role)
        for role, source in others.items()
        if (from_run := wanted[role]) is not None
    }


def _take_model(source: RunDir, wanted: FromRun, target: Path) -> Path:
    """A model folder made of the source run's snapshot."""
    from rollout.objects.opening import open_source
    from rollout.weights.merging import dense_weights
    from rollout.weights.mirror import WeightFiles

    snapshot, config = read_snapshot(source, wanted.snapshot), read_config(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as scratch:
        files = WeightFiles(open_source(config, source.objects), Path(scratch))
        weights = files.path(snapshot["version"]["object"])
        return materialise_model(
            config_path=Path(config.resolved.model_path),
            weights=dense_weights(config, weights, Path(scratch)),
            target=target,
            score_pad_id=config.resolved.pad_token_id if config.spec.trains_scorer else None,
            chat_template=config.spec.model.chat_template,
        )


def _record(stage: _Stage, prepared: PreparedRun) -> None:
    """Write down what is about to run: the resolved manifest, and the run it starts from."""
    from ruamel.yaml import YAML

    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": prepared.name, "namespace": prepared.namespace},
        "spec": prepared.spec.model_dump(mode="json", exclude_none=True),
    }
    with stage.run.manifest.open("w") as file:
        yaml = YAML(typ="safe", pure=True)
        yaml.representer.ignore_aliases = lambda *_: True  # what is read back may hold none
        yaml.dump(document, file)
    if stage.source is not None:
        (stage.run.path / "source").write_text(stage.source.name)


def read_source(run: RunDir) -> str | None:
    """The name of the directory of the run that this one started from, or None."""
    path = run.path / "source"
    return path.read_text().strip() if path.exists() else None


def _reuse(run: RunDir, prepared: PreparedRun) -> RunResult | None:
    """The result of a run that has ended well and need not go on, or None. Raises SpecError."""
    result = read_result(run)
    steps = prepared.spec.train.max_steps if prepared.spec.train is not None else None
    done = result.get("step") or 0
    if result.get("exit_code") != EXIT_OK or (steps or 0) > done:
        return None
    require_more_steps(prepared.spec, done, run.name)
    return RunResult(exit_code=EXIT_OK, run_dir=run.path, summary=result)


def _home() -> Path:
    return runs_home(os.environ)


def _load(
    manifest: str | Path | Sequence[Document], overrides: Sequence[str] | Mapping[str, Any]
) -> list[Document]:
    documents = load_documents(manifest) if isinstance(manifest, str | Path) else manifest
    if isinstance(overrides, Mapping):
        return [apply_values(document, overrides) for document in documents]
    return [apply_overrides(document, overrides) for document in documents]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Home:
    """Where the runs of one manifest lie. ``several``: it has more than one."""

    run_dir: Path | None
    several: bool

    def place(self, name: str, resume: str | None, source: RunDir | None) -> RunDir | None:
        """The directory that an earlier run of ``name`` left to go on with; None to make a new one.

        Of a pipeline only a run that started from ``source`` counts. Raises SpecError when there is
        nothing to resume, or a run is in the way.
        """
        if self.run_dir is not None:
            return self._given(self.run_dir / name if self.several else self.run_dir, resume)
        if resume is None:
            return None
        if not self.several:
            return find_run_dir(_home(), name, resume)
        found = [
            run
            for run in find_run_dirs(_home(), name)
            if run.worker_config.exists() and read_source(run) == (source and source.name)
        ]
        named = [run for run in found if run.name == resume]
        return (named or found or [None])[-1]

    def _given(self, path: Path, resume: str | None) -> RunDir | None:
        exists = (path / "worker.json").exists()
        if exists and resume is None:
            raise SpecError(f"{path} already holds a run; pass --resume Latest, or another folder")
        if resume is not None and not exists and not self.several:
            raise SpecError(f"--resume {resume}: {path} holds no run")
        return RunDir(path=path.absolute()) if exists else None

    def make(self, name: str) -> RunDir:
        """A new directory."""
        if self.run_dir is None:
            return create_run_dir(_home(), name)
        return prepare_run_dir(self.run_dir / name if self.several else self.run_dir)
