"""``rollout infer requests``: the request log's conversations as a file of rows to learn from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line
from rollout.cli.starting.keys import KeysOption, keys_folder_of
from rollout.errors import SpecError

if TYPE_CHECKING:
    from rollout.inference.gateway.request_log import RequestLine
    from rollout.inference.request_rows import LeftOut

OWNERS = 0o600
FileArgument = Annotated[
    Path, typer.Argument(help="The JSON lines to write; a file there is replaced.", metavar="FILE")
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model", help="A name that was asked for, or a version that answered; repeat it."
    ),
]
SinceOption = Annotated[
    datetime | None,
    typer.Option("--since", formats=["%Y-%m-%d"], help="First day of what is taken, in UTC."),
]


def requests(
    file: FileArgument,
    *,
    model: ModelOption = None,
    since: SinceOption = None,
    folder: KeysOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Write what clients asked and were answered as rows of ``messages``, from the log of ``serve --log-bodies``."""
    from rollout.common.atomic_files import replacing
    from rollout.inference.request_rows import LeftOut, build_rows

    began = None if since is None else since.replace(tzinfo=UTC).timestamp()
    left_out: Counter[LeftOut] = Counter()
    num_rows = 0
    lines = _lines(keys_folder_of(folder) / "logs" / "requests")
    with replacing(file, durable=False, mode=OWNERS) as rows:
        for line in lines:
            if line is not None and not _wanted(line, model, began):
                continue
            found = LeftOut.unreadable if line is None else build_rows(line)
            if isinstance(found, LeftOut):
                left_out[found] += 1
                continue
            rows.writelines(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in found)
            num_rows += len(found)
    _tell(file, num_rows, left_out, output)


def _lines(folder: Path) -> Iterator[RequestLine | None]:
    """Lines of the log, oldest day first; None for one that is none. Raises SpecError where there is no log."""
    from rollout.inference.gateway.request_log import PREFIX, SUFFIX
    from rollout.inference.request_rows import read_line

    days = sorted(folder.glob(f"{PREFIX}*{SUFFIX}"))
    if not days:
        raise SpecError(f"{folder}: no request was logged here; serve with --log-bodies")
    return (read_line(line) for day in days for line in _read(day))


def _read(day: Path) -> Iterator[bytes]:
    with day.open("rb") as file:
        yield from file


def _wanted(line: RequestLine, names: list[str] | None, began: float | None) -> bool:
    named = not names or line.asked in names or line.version in names
    return named and (began is None or line.time >= began)


def _tell(file: Path, num_rows: int, left_out: Counter[LeftOut], output: OutputFormat) -> None:
    if output is OutputFormat.json:
        counted = {why.name: num for why, num in left_out.items()}
        print_json({"file": str(file), "rows": num_rows, "leftOut": counted})
        return
    print_line(f"{num_rows} rows in {file}")
    for why, num in left_out.most_common():
        print_line(f"left out: {num} {why}")
