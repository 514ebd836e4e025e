"""``rollout plugins``: what a plugin is, and whether it keeps its contract."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line
from rollout.common.parameters import read_pair
from rollout.errors import RunFailed

app = typer.Typer(
    help="Rewards, environments, tools, suites, trackers and data of your own in processes of their own: begin one, look at one, test one.",
    no_args_is_help=True,
)
LOOK_SECONDS = 0.3
"""Between two looks at a plugin's files."""
FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Where the plugin's plugin.yaml lies.")
]


class PluginKind(StrEnum):
    """What a plugin is for."""

    reward = "reward"
    environment = "environment"
    tool = "tool"
    evaluation = "evaluation"
    tracker = "tracker"
    data = "data"


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that is not there.")],
    *,
    kind: Annotated[PluginKind, typer.Option("--kind", help="What it is for.")] = PluginKind.reward,
) -> None:
    """Write a plugin in Python that keeps the contract: change it from there."""
    from rollout.plugins.sidecar.scaffold import write_plugin

    for path in write_plugin(folder, kind.value):
        print_line(f"wrote {path}")
    print_line(f"next: rollout plugins test {folder}")


@app.command("list")
def list_plugins(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where they are looked for.")
    ] = Path(),
    output: OutputOption = OutputFormat.text,
) -> None:
    """Plugins in a folder and below."""
    from rollout.plugins.sidecar.lock import find_plugin_folders
    from rollout.plugins.sidecar.manifest import FILE, read_plugin

    found = [(path, read_plugin(path)) for path in find_plugin_folders(folder)]
    if output is OutputFormat.json:
        print_json([_told(plugin) for _, plugin in found])
        return
    for path, plugin in found:
        print_line(f"{path}  {plugin.title}  {plugin.manifest.kind}  {plugin.manifest.description}")
    if not found:
        print_line(f"no {FILE} in {folder} or below; begin one with: rollout plugins new FOLDER")


@app.command()
def show(
    folder: FolderArgument,
    *,
    tools: Annotated[
        bool,
        typer.Option(
            "--tools", help="Start it, and print the tools that it has, as toolPlugins take them."
        ),
    ] = False,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter", help="What it is configured with for that: unit=cups; repeatable."
        ),
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """What plugin.yaml says, and the digest that a run of it is held to."""
    from rollout.plugins.sidecar.manifest import read_plugin

    plugin = read_plugin(folder)
    if tools:
        from rollout.plugins.sidecar.kinds.tool import read_tools

        given = dict(read_pair(text, "--parameter") for text in parameters or ())
        print_json(read_tools(plugin, given))  # which YAML takes too
        return
    told = _told(plugin)
    if output is OutputFormat.json:
        print_json(told)
        return
    for name, value in told.items():
        if name == "parameters":
            for one in value:
                default = "required" if one["default"] is None else f"={one['default']}"
                print_line(f"parameter    {one['name']} ({default}) {one['description']}")
        elif value not in (None, (), ""):
            print_line(f"{name:12} {' '.join(value) if isinstance(value, tuple) else value}")


@app.command()
def test(
    folder: FolderArgument,
    *,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", help="What it is configured with: word=please; repeatable."),
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Start it, and hold it to the contract: no cloud, GPU or cluster is needed. Exit code 1 where a check fails."""
    from rollout.plugins.sidecar.conformance.running import check_plugin

    found = []
    for one in check_plugin(
        folder, dict(read_pair(text, "--parameter") for text in parameters or ())
    ):
        found.append(one)
        if output is OutputFormat.text:
            print_line(
                f"passed  {one.name}" if one.has_passed else f"FAILED  {one.name}: {one.why}"
            )
    failed = [one for one in found if not one.has_passed]
    if output is OutputFormat.json:
        print_json([{"name": one.name, "passed": one.has_passed, "why": one.why} for one in found])
    if failed:
        raise RunFailed(f"{folder}: {len(failed)} of {len(found)} checks failed")


@app.command()
def serve(
    folder: FolderArgument,
    *,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", help="Where it serves. Unset: socket in a folder of its own."),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", help="What it is configured with: word=please; repeatable."),
    ] = None,
) -> None:
    """Serve it at one address until Ctrl-C; once its files have changed, what they are now."""
    import tempfile
    import threading

    from rollout.common.stacks import heed_end
    from rollout.plugins.sidecar.serving_folder import PluginServer

    given = dict(read_pair(text, "--parameter") for text in parameters or ())
    stop = threading.Event()
    heed_end(stop.set, shows=lambda: False)
    with tempfile.TemporaryDirectory(prefix="rollout-serve-") as place:
        server = PluginServer(folder, given, socket or Path(place) / "socket")
        try:
            while not stop.is_set():
                if told := server.refresh():
                    print_line(told)
                stop.wait(LOOK_SECONDS)
        finally:
            server.close()


@app.command()
def lock(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The run's code: what spec.code names.")
    ] = Path(),
    *,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit code 1 where a plugin has changed."),
    ] = False,
) -> None:
    """Write plugins.lock: the digests of a folder's plugins, which plan and run then hold them to."""
    from rollout.plugins.sidecar import lock as locking

    if not check:
        made = locking.lock_folder(folder)
        path = locking.write_lock(folder, made)
        print_line(f"wrote {path}: {len(made.plugins)} plugins")
        return
    known = locking.read_lock(folder)
    if known is None:
        raise RunFailed(
            f"{folder} has no {locking.LOCK}: write it with `rollout plugins lock {folder}`"
        )
    if found := locking.differences(known, folder):
        raise RunFailed(locking.describe(found))
    print_line(f"{len(known.plugins)} plugins are what {folder / locking.LOCK} says")


@app.command()
def contract() -> None:
    """Print the contract as protobuf, for plugins in other languages."""
    from rollout.plugins.sidecar.scaffold import contract_text

    print_line(contract_text().rstrip("\n"))


def _told(plugin: Any) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(plugin.manifest),
        "folder": str(plugin.folder),
        "digest": plugin.digest,
    }
