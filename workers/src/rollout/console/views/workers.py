"""Who works on a run: leases, versions, staleness, and what the processes and the folder take of this machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rollout.console.asking import answer, folder_of
from rollout.console.render import render
from rollout.console.views.steps import share_histogram
from rollout.ledger.sql.browsing import read_workers
from rollout.ledger.views import StepView, WorkerView
from rollout.report.evidence import Piece, list_evidence
from rollout.report.gather import open_ledger
from rollout.runs.run_dir import RunDir, find_owner

STEPS_LOOKED_AT = 100
PROCESSES_MAX = 256
FILES_MAX = 20_000
NAME_MAX = 60
ENTRY = "rollout.entrypoints."
"""Where the part of a command begins that says what the process is."""

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """One process of a live run: resident bytes, seconds on a processor, threads."""

    pid: int
    name: str
    resident_bytes: int
    cpu_seconds: float
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a part of the run's folder takes; ``whole`` False: there were more files than are counted."""

    name: str
    num_files: int
    size_bytes: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersPage:
    """``histogram``: of the last steps, how many samples were how many steps old."""

    workers: tuple[WorkerView, ...]
    histogram: tuple[tuple[int, int, float], ...]
    num_steps: int
    version: str
    processes: tuple[ProcessUse, ...]
    sizes: tuple[Size, ...]
    evidence: tuple[Piece, ...]


def read_workers_page(folder: Path) -> WorkersPage:
    """All of it. Raises LedgerError."""
    with open_ledger(folder) as ledger:
        run = ledger.run()
        steps = ledger.steps(after=max(0, run.step - STEPS_LOOKED_AT))
        with ledger.snapshot() as tx:
            workers = read_workers(tx)
    owner = find_owner(RunDir(path=folder))
    return WorkersPage(
        workers=workers,
        histogram=tuple(share_histogram(dict(sum_histograms(steps)))),
        num_steps=len(steps),
        version="" if run.version is None else f"step {run.version.step}, {run.version.digest}",
        processes=() if owner is None else tuple(observe_processes(owner)),
        sizes=tuple(observe_sizes(folder)),
        evidence=tuple(list_evidence(folder)),
    )


def sum_histograms(steps: tuple[StepView, ...]) -> Counter[str]:
    """How many samples were how old, over all these steps."""
    found: Counter[str] = Counter()
    for step in steps:
        found.update(step.metrics.get("staleness_histogram") or {})
    return found


def observe_processes(root: int) -> Iterator[ProcessUse]:
    """A process and all that it has started, from /proc; one that ends meanwhile is left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _read(entry / "stat").rpartition(")")[2].split()
        if len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    wanted, seen = [root], 0
    while wanted and seen < PROCESSES_MAX:
        pid = wanted.pop(0)
        wanted.extend(sorted(children.get(pid, ())))
        seen += 1
        if (found := _observe(pid)) is not None:
            yield found


def _observe(pid: int) -> ProcessUse | None:
    folder = Path(f"/proc/{pid}")
    fields = _read(folder / "stat").rpartition(")")[2].split()
    memory = _read(folder / "statm").split()
    if len(fields) < 18 or len(memory) < 2:
        return None
    words = _read(folder / "cmdline").replace("\0", " ").strip() or _read(folder / "comm").strip()
    words = words[max(0, words.find(ENTRY)) :]
    return ProcessUse(
        pid=pid,
        name=words if len(words) <= NAME_MAX else f"{words[: NAME_MAX - 1]}…",
        resident_bytes=int(memory[1]) * os.sysconf("SC_PAGE_SIZE"),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        threads=int(fields[17]),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def observe_sizes(folder: Path) -> Iterator[Size]:
    """Each part of the folder, the largest first."""
    sizes = [_measure(entry) for entry in folder.iterdir()]
    yield from sorted(sizes, key=lambda one: -one.size_bytes)


def _measure(entry: Path) -> Size:
    number, total = 0, 0
    for path in (entry,) if not entry.is_dir() else _files(entry):
        if number == FILES_MAX:
            return Size(name=entry.name, num_files=number, size_bytes=total, whole=False)
        try:
            total += path.lstat().st_size
        except OSError:
            continue
        number += 1
    return Size(name=entry.name, num_files=number, size_bytes=total, whole=True)


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root) / name for name in names)


@routes.get("/runs/{run}/workers")
async def show_workers(request: web.Request) -> web.Response:
    """Who works, and what it takes."""
    folder = folder_of(request)
    return await answer(
        request,
        lambda: render(
            "workers.html",
            run=folder.name,
            live=find_owner(RunDir(path=folder)) is not None,
            found=read_workers_page(folder),
        ),
    )
