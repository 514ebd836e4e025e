"""``rollout attach``, ``rollout stop``, ``rollout runs watch``: runs that go on without this terminal, here or at another machine."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.outcomes import print_result
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_note
from rollout.cli.runs import RunArgument, find
from rollout.cli.starting.elsewhere import (
    BringOption,
    OnOption,
    do_elsewhere,
    follow_elsewhere,
    reach_host,
    require_brought,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rollout.runs.run_dir import RunDir
    from rollout.supervisor.detached import EndedFirst, Started
    from rollout.supervisor.display.progress import Display

POLL_SECONDS = 0.5
DetachOption = Annotated[
    bool,
    typer.Option(
        "--detach", help="Go on in the background once it has begun: see attach and stop."
    ),
]


def go_on_alone(run_dir: Path | None, output: OutputFormat) -> None:
    """Divide: in the process that goes on, return; in this one, say what became of it and exit."""
    from rollout.runs.run_dir import runs_home
    from rollout.supervisor.detached import EndedFirst, detach

    became = detach(runs_home(os.environ), run_dir)
    if became is None:
        return
    if isinstance(became, EndedFirst):
        _print_end_of(became)
        raise typer.Exit(became.exit_code)
    _print_started(became, output)
    raise typer.Exit(0)


def _print_end_of(became: EndedFirst) -> None:
    for line in became.words.splitlines():
        print_note(line)


def _print_started(became: Started, output: OutputFormat) -> None:
    run = became.run
    if output is OutputFormat.json:
        print_json({"run": run.name, "run_dir": str(run.path), "pid": became.pid})
        return
    print_line(f"{run.name} goes on in the background, in {run.path}")
    for what in ("attach", "logs tail", "stop"):
        print_line(f"  rollout {what} {run.name}")


def attach(run: RunArgument, *, on: OnOption = None, bring: BringOption = None) -> None:
    """Show a run as it goes on, to its end; Ctrl-C leaves it running. With --on its results are brought here."""
    from rollout.runs.run_dir import find_owner
    from rollout.supervisor.display.progress import make_display
    from rollout.supervisor.launch import read_result

    if on is not None:
        require_brought(bring or [])
        follow_elsewhere(reach_host(on), run, bring or [], OutputFormat.text)
    found = _find(run)
    if find_owner(found) is not None:
        display = make_display("auto", found.name)
        try:
            _follow(found, display)
        except KeyboardInterrupt:
            display.close()
            print_note(f"left; it goes on. To stop it: rollout stop {found.name}")
            raise typer.Exit(0) from None
        finally:
            display.close()
    summary = read_result(found)
    print_result(found.path, summary)
    raise typer.Exit(summary.get("exit_code", 1))


def _follow(run: RunDir, display: Display) -> None:
    """Show each new status until nobody owns the run."""
    from rollout.runs.run_dir import find_owner
    from rollout.runs.snapshots.places import read_config
    from rollout.supervisor.poller import StatusPoller

    poller = StatusPoller(read_config(run).layout.coordinator_url, run.token)
    poller.start()
    try:
        while find_owner(run) is not None:
            if poller.latest is not None:
                display.show(poller.latest)
            time.sleep(POLL_SECONDS)
    finally:
        poller.close()


def stop(
    run: RunArgument,
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Save nothing more: committed steps are kept.")
    ] = False,
    on: OnOption = None,
) -> None:
    """Stop a run as Ctrl-C does: at the next step, with its state saved."""
    from rollout.supervisor.detached import stop_run

    if on is not None:
        do_elsewhere(on, run, ["stop", None, *(["--now"] if now else [])])
    found = _find(run)
    if not stop_run(found, at_once=now):
        print_note(f"{found.name} is not running")
        return
    print_line(f"stopped {found.name}; go on with its command and --resume {found.name}")


def watch(*, on: OnOption = None, output: OutputOption = OutputFormat.text) -> None:
    """The runs of a machine that are under way, a line whenever one has moved, until none is left."""
    if on is not None:
        do_elsewhere(on, None, ["runs", "watch", "--output", output])
    seen: dict[str, str] = {}
    while True:
        running = _running()
        for run in running:
            line = _describe(run)
            if seen.get(run.name) != line["progress"]:
                _print_progress(line, output)
                seen[run.name] = line["progress"]
        for name in set(seen) - {run.name for run in running}:
            _print_progress({"run": name, "progress": _outcome(name)}, output)
            del seen[name]
        if not running:
            break
        time.sleep(POLL_SECONDS)


def _print_progress(line: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.json:
        import json

        print_line(json.dumps(line))
    else:
        print_line(f"{line['run']}: {line['progress']}")


def _running() -> list[RunDir]:
    from rollout.runs.run_dir import RunDir, find_owner, runs_home

    locks = sorted(runs_home(os.environ).glob("*/supervisor.lock"))
    runs = [RunDir(path=lock.parent) for lock in locks]
    return [run for run in runs if find_owner(run) is not None]


def _describe(run: RunDir) -> dict[str, Any]:
    """What the run's coordinator says now."""
    from rollout.errors import RolloutError
    from rollout.protocol.auth import read_token
    from rollout.protocol.client import CoordinatorClient
    from rollout.runs.snapshots.places import read_config
    from rollout.supervisor.display.facts import render_line

    try:
        url = read_config(run).layout.coordinator_url
        client = CoordinatorClient.connect(
            url, read_token(run.token, "operator"), patience_seconds=0.0
        )
        try:
            progress = render_line(client.status())
        finally:
            client.close()
    except RolloutError:
        progress = "starting"
    return {"run": run.name, "progress": progress}


def _outcome(name: str) -> str:
    from rollout.supervisor.launch import read_result

    result = read_result(_find(name))
    return f"ended: {result.get('reason', 'it left no result')}"


def _find(run: str) -> RunDir:
    from rollout.runs.run_dir import RunDir

    return RunDir(path=find(run))
