"""``rollout process run|save|restore|list``: programs of this machine that are imaged while they run, and gone on with."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
    print_table,
)
from rollout.cli.snapshot.options import (
    EndpointOption,
    ObjectPathOption,
    RegionOption,
    SnapshotArgument,
    row_of,
    where_to_look,
)

if TYPE_CHECKING:
    import subprocess

    from rollout.snapshots.processes.contract import ProcessSnapshotter

WAY = "criu"
WayOption = Annotated[
    str,
    typer.Option("--with", help="What makes images: criu, or none.", metavar="criu|none"),
]

app = typer.Typer(
    help="Programs that can be imaged while they run, and gone on with (Linux, root, CRIU 4.2 or newer).",
    no_args_is_help=True,
)


@app.command("run", context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    *,
    name: Annotated[str, typer.Option("--name", help="What save calls it.")] = "program",
    way: WayOption = WAY,
) -> None:
    """Run a program in a cell of its own, in which it can be imaged; ends as it ends.

    It has its own namespace of processes and no io_uring; files, network and devices are this machine's.
    """
    from rollout.runs.run_dir import runs_home
    from rollout.snapshots.processes.cell import (
        LIVE,
        RUN,
        keeper_of,
        locked,
        make_cell,
        processes_home,
    )
    from rollout.snapshots.processes.contract import require_support

    require_support(_snapshotter(way))
    cell = make_cell(processes_home(runs_home(os.environ)), name, command)
    with locked(cell, LIVE), keeper_of(cell, RUN, command) as keeper:
        print_note(f"{name} runs in cell {cell.uid}; image it with: rollout process save {name}")
        code = _follow(keeper)
    raise typer.Exit(code)


@app.command("save")
def save(
    program: Annotated[str, typer.Argument(help="Its name or UID.", metavar="PROGRAM")],
    *,
    stop: Annotated[bool, typer.Option("--stop", help="End the program with the image.")] = False,
    label: Annotated[str, typer.Option("--label", help="A name for people.")] = "",
    object_path: ObjectPathOption = None,
    way: WayOption = WAY,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Make an image of a program that runs: encrypted, signed, and kept with those before it; prints the snapshot's id."""
    from rollout.runs.processes.saving import place_of_images, save_image

    place = place_of_images(object_path)
    saved = save_image(program, _snapshotter(way), place, stop=stop, label=label)
    if output is OutputFormat.json:
        told = {"new_bytes": saved.new_bytes, "stopped_seconds": saved.stopped_seconds}
        print_json({**row_of(saved.manifest, place.where), **told})
        return
    if not saved.manifest.header.chain:
        print_note(
            "the program has no point: its image is of any moment, and is not compared when it goes on"
        )
    print_line(saved.manifest.id)


@app.command("restore")
def restore(
    snapshot: SnapshotArgument,
    *,
    renew: Annotated[
        list[str] | None,
        typer.Option(
            "--renew", help="Hand the program this variable of yours anew.", metavar="NAME"
        ),
    ] = None,
    object_path: ObjectPathOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    way: WayOption = WAY,
) -> None:
    """Go on with a program from its image, on the machine that it was made on; ends as the program ends."""
    from rollout.errors import SpecError
    from rollout.runs.processes.restoring import require_restorable, restored
    from rollout.runs.snapshots.places import find_snapshot

    missing = [one for one in renew or () if one not in os.environ]
    if missing:
        raise SpecError(f"--renew {missing[0]}: there is no such variable in this environment")
    snapshotter = _snapshotter(way)
    found = find_snapshot(snapshot, where_to_look(object_path, None, endpoint, region))
    image = require_restorable(found, snapshotter)
    variables = {one: os.environ[one] for one in renew or ()}
    with restored(image, snapshotter, variables) as gone_on:
        compared = "its state is what was imaged" if gone_on.compared else "it was not compared"
        print_note(f"{gone_on.cell.name} goes on in cell {gone_on.cell.uid}: {compared}")
        code = _follow(gone_on.keeper)
    raise typer.Exit(code)


@app.command("list")
def list_programs(output: OutputOption = OutputFormat.text) -> None:
    """The programs that run in cells now; their images: rollout snapshot list --kind process."""
    from rollout.runs.run_dir import runs_home
    from rollout.snapshots.processes.cell import list_cells, processes_home, tree_in

    cells = list_cells(processes_home(runs_home(os.environ)))
    rows = [
        {
            "name": cell.name,
            "uid": cell.uid,
            "pid": tree.init,
            "point": cell.has_point,
            "argv": cell.argv,
        }
        for cell in cells
        if (tree := tree_in(cell)) is not None
    ]
    if output is OutputFormat.json:
        print_json(rows)
    elif not rows:
        print_line("no program runs in a cell; start one with: rollout process run -- COMMAND")
    else:
        table = [
            (one["name"], one["uid"], str(one["pid"]), "yes" if one["point"] else "no")
            for one in rows
        ]
        print_table(["NAME", "UID", "PID", "POINT"], table)


def _snapshotter(way: str) -> ProcessSnapshotter:
    from rollout.snapshots.processes.criu import choose_snapshotter

    return choose_snapshotter(way, os.environ)


def _follow(keeper: subprocess.Popen[bytes]) -> int:
    """Until the program has ended; what asks us to end asks it. Its exit code, 128 and a signal where that ended it."""

    def pass_on(number: int, _frame: object) -> None:
        keeper.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = keeper.wait()
    return code if code >= 0 else 128 - code
