"""``rollout run``: run a manifest here, with live progress and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.outcomes import print_result
from rollout.cli.output import OutputFormat, OutputOption, print_json
from rollout.cli.starting.detaching import DetachOption, go_on_alone
from rollout.cli.starting.elsewhere import (
    BringOption,
    OnOption,
    RemotePythonOption,
    require_goes_elsewhere,
    start_elsewhere,
)

if TYPE_CHECKING:
    from rollout.runs.snapshots.places import WhereToLook
    from rollout.supervisor.run import RunResult

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field: train.maxSteps=50 (repeatable)."),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        help="Go on with the newest run of this manifest: Latest, or a name; or begin with a snapshot: its id.",
    ),
]
RunDirOption = Annotated[
    Path | None,
    typer.Option("--run-dir", help="Where the run lives; default: runs/<name>-<n>."),
]
SnapshotsOption = Annotated[
    str | None,
    typer.Option(
        "--object-path",
        help="Where the snapshot of --resume lies; default: in the runs of this machine.",
        metavar="DIR|URI",
    ),
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        help="Take a snapshot that this key has signed, too: ed25519:..., or its file (repeatable).",
        metavar="KEY",
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        help="The S3 server's address of --object-path, or of restoreFrom.object.",
    ),
]
RegionOption = Annotated[
    str | None,
    typer.Option(
        "--region", help="The region of the bucket of --object-path, or of restoreFrom.object."
    ),
]
InPlaceOption = Annotated[
    bool,
    typer.Option(
        "--in-place",
        help="Of --resume ID: the snapshot's own run goes back to it, under its name; steps after it count no more.",
    ),
]
ReloadPluginsOption = Annotated[
    bool,
    typer.Option(
        "--reload-plugins",
        help="Play new episodes with plugins as they are changed while the run goes on (numerics.mode Fast).",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Plan and print what would run; start nothing.")
]


def run(
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="A manifest (YAML or TOML); - reads stdin.")
    ] = None,
    *,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A plan.lock; refused when its inputs drifted.")
    ] = None,
    set_: SetOption = None,
    resume: ResumeOption = None,
    in_place: InPlaceOption = False,
    run_dir: RunDirOption = None,
    dry_run: DryRunOption = False,
    object_path: SnapshotsOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    trust: TrustOption = None,
    reload_plugins: ReloadPluginsOption = False,
    detach: DetachOption = False,
    on: OnOption = None,
    remote_python: RemotePythonOption = None,
    bring: BringOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Run a manifest on this machine or, with --on, on another one; with live progress, ending in a report."""
    from rollout.runs.snapshots.places import WhereToLook

    documents = _read(file, plan, set_ or [])
    lies = WhereToLook(
        object_path=object_path, endpoint=endpoint, region=region, trust=tuple(trust or ())
    )
    if on is not None or remote_python is not None or bring:
        stays = {"--plan": plan, "--run-dir": run_dir, "--dry-run": dry_run}
        stays |= {"--object-path": lies != WhereToLook(), "--reload-plugins": reload_plugins}
        stays |= {"--in-place": in_place}
        require_goes_elsewhere(on, stays)
        start_elsewhere(
            documents,
            str(on),
            remote_python=remote_python,
            bring=bring or [],
            resume=resume,
            detach=detach,
            output=output,
        )
        return
    start(
        documents,
        resume=resume,
        run_dir=run_dir,
        dry_run=dry_run,
        output=output,
        snapshots=lies,
        detach=detach,
        reload_plugins=reload_plugins,
        in_place=in_place,
    )


def _read(file: str | None, plan: Path | None, overrides: list[str]) -> list[Any]:
    """The documents of a manifest, or of a plan. Raises SpecError."""
    from rollout.errors import SpecError

    if (file is None) == (plan is None):
        raise SpecError("pass exactly one of -f MANIFEST and --plan PLAN.LOCK")
    if plan is None:
        return load_overridden(str(file), overrides)
    from rollout.runs.plan import documents_of_plan

    return list(documents_of_plan(plan, overrides=overrides))


def load_overridden(file: str, overrides: list[str]) -> list[Any]:
    """The documents of a manifest with ``--set`` applied. Raises SpecError."""
    from rollout.runs.manifest import load_documents
    from rollout.runs.validation import apply_overrides

    return [apply_overrides(document, overrides) for document in load_documents(file)]


def build_document(
    command: str, name: str, spec: dict[str, Any], overrides: list[str] | None
) -> Any:
    """The manifest that a command's options amount to, with ``--set`` applied. Raises SpecError."""
    from rollout.runs.manifest import Document
    from rollout.runs.validation import apply_overrides

    manifest = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": spec,
    }
    return apply_overrides(Document(source=command, data=manifest, lines={}), overrides or [])


def start(
    documents: list[Any],
    *,
    resume: str | None,
    run_dir: Path | None,
    dry_run: bool,
    output: OutputFormat,
    snapshots: WhereToLook | None = None,
    detach: bool = False,
    reload_plugins: bool = False,
    in_place: bool = False,
) -> None:
    """Check, then run or (``dry_run``) only plan. Ends the process with the run's exit code."""
    result = launch(
        documents,
        resume=resume,
        run_dir=run_dir,
        dry_run=dry_run,
        output=output,
        snapshots=snapshots,
        detach=detach,
        reload_plugins=reload_plugins,
        in_place=in_place,
    )
    if result is None:
        return
    if output is OutputFormat.json:
        print_json(result.summary)
    else:
        print_result(result.run_dir, result.summary)
    raise typer.Exit(result.exit_code)


def launch(
    documents: list[Any],
    *,
    resume: str | None,
    run_dir: Path | None,
    dry_run: bool,
    output: OutputFormat,
    snapshots: WhereToLook | None = None,
    detach: bool = False,
    reload_plugins: bool = False,
    in_place: bool = False,
) -> RunResult | None:
    """Check and run, without a word on what came of it; None where it was only planned.

    ``detach``: the run goes on in a process of its own, in which this returns; the one that called ends.
    """
    from rollout.cli.output import print_note
    from rollout.runs.validation import require_valid

    for warning in require_valid(documents):
        print_note(f"warning: {warning}")
    if reload_plugins:
        _require_reloadable(documents)
    if dry_run:
        from rollout.cli.plans import print_plan
        from rollout.runs.plan import build_plan

        print_plan(build_plan(documents, offline=True), output)
        return None
    if any(serves(one.data) for one in documents):
        _require_a_run(in_place)
        from rollout.cli.starting.serving_training import serve_manifest

        serve_manifest(documents, resume=resume, run_dir=run_dir, detach=detach, output=output)
        return None
    if detach:
        go_on_alone(run_dir, output)
    from rollout.cli.starting.notices import heeding_notices
    from rollout.common.stacks import show_on_signal
    from rollout.plugins.guard import hide_memory
    from rollout.report import write_report
    from rollout.runs.snapshots.places import WhereToLook
    from rollout.supervisor import run_manifest
    from rollout.supervisor.launch import LaunchOptions

    show_on_signal()
    hide_memory()  # the person's environment holds more than they gave to the code of a manifest
    asked = LaunchOptions(
        snapshots=snapshots or WhereToLook(), in_place=in_place, reloads_plugins=reload_plugins
    )
    with heeding_notices(documents):
        return run_manifest(
            documents,
            resume=resume,
            run_dir=run_dir,
            progress="plain" if output is OutputFormat.json else True,
            report=None if _answers_rows(documents) else write_report,
            asked=asked,
        )


def _require_reloadable(documents: list[Any]) -> None:
    from rollout.errors import SpecError
    from rollout.plugins.sidecar.named import require_reloadable
    from rollout.runs.prepare import prepare_run

    if any(serves(one.data) for one in documents):
        raise SpecError("--reload-plugins: a service plays no episodes: leave the option out")
    for one in documents:
        if one.data.get("kind", "RolloutRun") == "RolloutRun":
            require_reloadable(prepare_run(one).spec)


def _require_a_run(in_place: bool) -> None:
    from rollout.errors import SpecError

    if in_place:
        raise SpecError("--in-place: a service has no snapshots: leave the option out")


def serves(document: dict[str, Any]) -> bool:
    """Whether a document asks for training as a service."""
    return (document.get("spec") or {}).get("serve") is not None


def _answers_rows(documents: list[Any]) -> bool:
    """Whether no run of the manifest makes steps, of which a report would tell."""
    return all((one.data.get("spec") or {}).get("infer") for one in documents)
