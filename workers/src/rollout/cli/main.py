"""The ``rollout`` command: puts the groups together and turns errors into exit codes.

Exit codes: 0 success; 1 the run failed; 2 the input is invalid or something it names is missing;
3 a gate refused; 4 something outside was unreachable; 130 interrupted, state saved.
"""

from __future__ import annotations

import sys

import typer

from rollout.cli import (
    comparing,
    costing,
    doctor,
    exporting,
    logs,
    manifests,
    placing,
    plans,
    runs,
    schemas,
    ui,
)
from rollout.cli.book import manifesting, verifying
from rollout.cli.cloud import commands as clouds
from rollout.cli.cluster import changing, endpoint, reading, stuck, waiting
from rollout.cli.debug import engine, evidence, pages, rendering
from rollout.cli.debug import learner as debug
from rollout.cli.env import commands as environments
from rollout.cli.model import exporting as model_exporting
from rollout.cli.model import showing
from rollout.cli.output import print_note
from rollout.cli.plugins import commands as plugins
from rollout.cli.process import commands as processes
from rollout.cli.snapshot import looking, storing
from rollout.cli.starting import (
    detaching,
    evaluating,
    inferring,
    running,
    serving_training,
    sweeping,
    training,
)
from rollout.errors import RolloutError

app = typer.Typer(
    name="rollout",
    help="LLM post-training as one manifest: on this machine, or as a Kubernetes object.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
model = typer.Typer(help="The models that runs have made.", no_args_is_help=True)
model.command("export")(model_exporting.export)
model.command("show")(showing.show)
snapshot = typer.Typer(help="States of runs that can be gone on from.", no_args_is_help=True)
snapshot.command("create")(storing.create)
snapshot.command("list")(looking.list_snapshots)
snapshot.command("show")(looking.show)
snapshot.command("verify")(looking.verify)
snapshot.command("verify-resume")(looking.verify_resume)
snapshot.command("diff")(looking.diff)
snapshot.command("prune")(storing.prune)
snapshot.command("copy")(storing.copy)
snapshot.command("export")(storing.export)
snapshot.command("import")(storing.import_)
app.command("validate")(manifests.validate)
app.command("fmt")(manifests.fmt)
app.command("plan")(plans.plan)
app.command("run")(running.run)
app.command("attach")(detaching.attach)
app.command("stop")(detaching.stop)
app.command("sweep")(sweeping.sweep)
app.add_typer(training.app, name="train")
runs.app.command("compare")(comparing.compare)
runs.app.command("watch")(detaching.watch)
runs.app.command("export")(exporting.export)
runs.app.command("to-manifest")(manifesting.to_manifest)
app.add_typer(runs.app, name="runs")
app.command("cost")(costing.cost)
app.command("verify-resume")(verifying.verify_resume)
app.add_typer(environments.app, name="env")
app.add_typer(plugins.app, name="plugins")
app.add_typer(model, name="model")
app.add_typer(snapshot, name="snapshot")
app.add_typer(processes.app, name="process")
app.add_typer(inferring.app, name="infer")
app.command("serve")(serving_training.serve)
app.command("eval")(evaluating.evaluate)
app.add_typer(logs.app, name="logs")
debug.app.command("rollout-only")(engine.rollout_only)
debug.app.command("profile")(engine.profile)
debug.app.command("render")(rendering.render)
debug.app.command("evidence")(evidence.evidence)
debug.app.command("page")(pages.page)
debug.app.command("stuck")(stuck.stuck)
app.add_typer(debug.app, name="debug")
app.command("submit")(changing.submit)
app.command("get")(reading.get)
app.command("describe")(reading.describe)
app.command("events")(reading.events)
app.command("top")(reading.top)
app.command("wait")(waiting.wait)
app.command("suspend")(changing.suspend)
app.command("resume")(changing.resume)
app.command("scale")(changing.scale)
app.command("delete")(changing.delete)
app.add_typer(endpoint.app, name="endpoint")
app.command("doctor")(doctor.doctor)
app.add_typer(clouds.app, name="cloud")
app.command("ui")(ui.ui)
app.command("schema")(schemas.schema)
app.command("place-plugin")(placing.place_plugin)


@app.callback()
def options(
    *,
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
) -> None:
    """LLM post-training as one manifest."""


def main() -> None:
    """Entry point of the console script."""
    show_traceback = "--debug" in sys.argv
    try:
        app()
    except RolloutError as error:
        if show_traceback:
            raise
        print_note(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print_note("interrupted")
        sys.exit(130)
