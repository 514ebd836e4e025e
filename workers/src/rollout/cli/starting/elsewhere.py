"""``--on ssh://host``: of run, attach, stop and runs watch, what is done at another machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.output import OutputFormat, print_json, print_line, print_note
from rollout.errors import SpecError

if TYPE_CHECKING:
    from rollout.remote.host import RemoteHost
    from rollout.runs.manifest import Document

OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="At another machine, which ssh reaches without a password.",
        metavar="ssh://[USER@]HOST[:PORT]",
    ),
]
RemotePythonOption = Annotated[
    str | None,
    typer.Option(
        "--remote-python",
        help="Of --on: an interpreter there that has rollout; default: one is made from this checkout.",
        metavar="PATH",
    ),
]
BringOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bring",
        help="Of --on: fetch a snapshot or the model, too, beside report and logs (repeatable).",
        metavar="snapshot|model",
    ),
]


def open_host(on: str, remote_python: str | None = None) -> RemoteHost:
    """The machine of ``--on``. Raises SpecError."""
    from rollout.remote.address import parse_address
    from rollout.remote.host import RemoteHost
    from rollout.remote.ssh import open_ssh

    ssh = open_ssh(parse_address(on), os.environ)
    return RemoteHost(ssh=ssh, say=print_note, python=remote_python)


def reach_host(on: str) -> RemoteHost:
    """The same, once it has let us in: a name that is misspelt is told at once. Raises HostError."""
    host = open_host(on)
    host.look("exit 0")
    return host


def require_goes_elsewhere(on: str | None, given: Mapping[str, Any]) -> None:
    """Raises SpecError without an address, and for options of a run that are of this machine alone, by name."""
    if on is None:
        raise SpecError("--remote-python and --bring are of --on ssh://HOST: add it")
    for name, value in given.items():
        if value:
            raise SpecError(f"{name} is of this machine, and --on is of another: leave one out")


def start_elsewhere(
    documents: Sequence[Document],
    on: str,
    *,
    remote_python: str | None,
    bring: Sequence[str],
    resume: str | None,
    detach: bool,
    output: OutputFormat,
) -> None:
    """Check, send, start and, unless ``detach``, follow to the end. Ends the process with the run's exit code."""
    from rollout.remote.parcel import needed_secrets, pack_run
    from rollout.remote.running import find_interpreter, look_at_host, start_there

    require_brought(bring)
    document = _only_run(documents)
    parcel = pack_run(document)
    host = open_host(on, remote_python)
    facts, findings = look_at_host(host, needed=parcel.size, installs=remote_python is None)
    for one in findings:
        if one.state != "ok":
            print_note(f"{host.name}: {one.name}: {one.found}; costs: {one.costs}; {one.fix}")
    if remote_python is None:
        print_note(f"{host.name}: the environment is looked for; the first takes minutes")
    python = find_interpreter(host, facts, remote_python)
    secrets = {name: os.environ[name] for name in needed_secrets(document) if name in os.environ}
    if secrets:
        print_note(f"{host.name}: the run is given {', '.join(secrets)}")
    options = [] if resume is None else ["--resume", resume]
    started = start_there(host, parcel, python, options, secrets)
    for line in started.said.splitlines():
        print_note(line)
    if started.exit_code:
        raise typer.Exit(started.exit_code)
    if detach:
        _print_started(host, started.run, output)
        return
    print_note(f"{started.run} goes on at {host.name}; Ctrl-C leaves it running")
    follow_elsewhere(host, started.run, bring, output)


def follow_elsewhere(
    host: RemoteHost, run: str, bring: Sequence[str], output: OutputFormat
) -> None:
    """Show a run to its end, over cut connections, and bring its results here; exits with its exit code."""
    from rollout.remote.running import bring_results, command_there
    from rollout.runs.run_dir import runs_home

    show = print_line if output is OutputFormat.text else print_note
    try:
        code = command_there(host, ["attach", None], run, _shown(show))
    except KeyboardInterrupt:
        print_note(f"left; it goes on. To stop it: rollout stop {run} --on {host.ssh.address}")
        raise typer.Exit(0) from None
    folder = bring_results(host, run, bring, runs_home(os.environ))
    if output is OutputFormat.json:
        told = {"run": run, "host": str(host.ssh.address), "exit_code": code}
        print_json({**told, "results": str(folder)})
    else:
        print_line(f"  {'results':<12} {folder}")
    raise typer.Exit(code)


def do_elsewhere(on: str, run: str | None, words: Sequence[str | None]) -> None:
    """One of rollout's commands at the machine of ``--on``; exits with its exit code."""
    from rollout.remote.running import command_there

    raise typer.Exit(command_there(reach_host(on), words, run, _shown(print_line)))


def require_brought(bring: Sequence[str]) -> None:
    """Raises SpecError for what cannot be asked for."""
    from rollout.remote.running import BROUGHT

    for one in bring:
        if one not in BROUGHT:
            raise SpecError(f"--bring {one}: expected {' or '.join(BROUGHT)}")


def _only_run(documents: Sequence[Document]) -> Document:
    from rollout.runs.validation import require_valid

    for warning in require_valid(documents):
        print_note(f"warning: {warning}")
    if len(documents) != 1 or documents[0].data.get("kind") != "RolloutRun":
        raise SpecError(
            f"--on takes one RolloutRun, and the manifest has {len(documents)} documents: send them one by one"
        )
    if (documents[0].data.get("spec") or {}).get("serve") is not None:
        raise SpecError("--on: a service has clients beside it: start it at the host itself")
    return documents[0]


def _print_started(host: RemoteHost, run: str, output: OutputFormat) -> None:
    address = str(host.ssh.address)
    if output is OutputFormat.json:
        print_json({"run": run, "host": address})
        return
    print_line(f"{run} goes on at {host.name}")
    for what in ("attach", "stop"):
        print_line(f"  rollout {what} {run} --on {address}")


def _shown(show: Callable[[str], None]) -> Callable[[bytes], None]:
    return lambda line: show(line.decode(errors="replace").rstrip("\r\n"))
