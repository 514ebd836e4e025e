"""The ends of the logs of a run's processes, by process and level; colours and cursor orders of terminals are left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rollout.console import live
from rollout.console.asking import answer, choice_of, folder_of, reading, word_of
from rollout.console.render import render
from rollout.console.standing import is_live
from rollout.errors import SpecError

LEVELS = ("all", "INFO", "WARNING", "ERROR")
ROW_ORDER = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
TAIL_BYTES = 256 << 10
LINES_MAX = 500
LINE_MAX = 4000
FILES_MAX = 64
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line: of which file, at which byte of it, which permalinks name."""

    process: str
    offset: int
    level: str
    text: str


def list_logs(folder: Path) -> list[Path]:
    """The logs of a run."""
    return sorted((folder / "logs").glob("*.log"))[:FILES_MAX]


def read_lines(folder: Path, process: str, level: str) -> list[LogLine]:
    """The last lines of one log, or of each. Raises SpecError for a process without a log."""
    logs = list_logs(folder)
    wanted = [path for path in logs if process in {"", path.stem}]
    if process and not wanted:
        known = ", ".join(path.stem for path in logs) or "none"
        raise SpecError(f"process={process}: no such log in this run; there are: {known}")
    most = LINES_MAX if process else max(20, LINES_MAX // max(1, len(wanted)))
    return [line for path in wanted for line in tail(path, level)[-most:]]


def tail(path: Path, level: str) -> list[LogLine]:
    """The whole lines in the last TAIL_BYTES of a log, from this level on; a line without one is of the line before."""
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - TAIL_BYTES)
        file.seek(start)
        content = file.read(TAIL_BYTES)
    if start:
        skipped = content.find(b"\n") + 1
        start, content = start + skipped, content[skipped:]
    found: list[LogLine] = []
    current = "INFO"
    for raw in content.splitlines(keepends=True):
        text = _ANSI.sub("", raw.decode(errors="replace").rstrip("\r\n"))[:LINE_MAX]
        named = _LEVEL.search(text[:80])
        current = named[1] if named else current
        if level == "all" or ROW_ORDER.index(current) >= ROW_ORDER.index(level):
            found.append(LogLine(process=path.stem, offset=start, level=current, text=text))
        start += len(raw)
    return found


def read_log_mark(folder: Path) -> tuple[int, str]:
    """What changes whenever somebody has written a line."""
    return sum(path.stat().st_size for path in list_logs(folder)), "logs"


@routes.get("/runs/{run}/logs")
async def show_logs(request: web.Request) -> web.Response:
    """The ends of logs."""
    folder, process = folder_of(request), word_of(request, "process")
    level = choice_of(request, "level", LEVELS)
    return await answer(
        request,
        lambda: render(
            "logs.html",
            run=folder.name,
            live=is_live(folder),
            process=process,
            level=level,
            levels=LEVELS,
            logs=[path.stem for path in list_logs(folder)],
            lines=read_lines(folder, process, level),
        ),
    )


@routes.get("/runs/{run}/logs/live")
async def follow_logs(request: web.Request) -> web.StreamResponse:
    """A line whenever a log has grown (server-sent events)."""
    folder = folder_of(request)
    return await live.follow(request, lambda: reading(request, lambda: read_log_mark(folder)))
