"""The two things that a person does to a run from here, as ``rollout stop`` and ``rollout run --resume`` do them.

A stop is asked for once for each process that works on a run: a second interrupt would end it without saving.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

from rollout.console.asking import HOME, folder_of, reading
from rollout.console.standing import RESUMABLE, is_live, judge_state
from rollout.errors import SpecError
from rollout.report.gather import open_ledger
from rollout.runs.run_dir import RunDir, find_owner
from rollout_api.visible import visible

BEGIN_SECONDS_MAX = 120.0
WORDS_MAX = 2000
ASKED: web.AppKey[dict[Path, int]] = web.AppKey("asked", dict)
"""Whom a run's stop was asked of, by the run's folder."""

routes = web.RouteTableDef()


@routes.post("/runs/{run}/stop")
async def stop(request: web.Request) -> web.StreamResponse:
    """Have a run save itself and stop at the next step; answers before it has."""
    folder = folder_of(request)
    owner = find_owner(RunDir(path=folder))
    if owner is None:
        raise SpecError(f"{folder.name} is not running: there is nothing to stop")
    if request.app[ASKED].get(folder) != owner:
        request.app[ASKED][folder] = owner
        os.kill(owner, signal.SIGINT)
    raise web.HTTPSeeOther(f"/runs/{request.match_info['run']}")


@routes.post("/runs/{run}/resume")
async def resume(request: web.Request) -> web.StreamResponse:
    """Go on with a run that was stopped in the background; answers when it has begun, or why it has not."""
    folder = folder_of(request)
    state = await reading(request, lambda: read_state(folder))
    if state not in RESUMABLE:
        raise SpecError(
            f"{folder.name} is {state}: only a run that is {' or '.join(RESUMABLE)} is gone on with"
        )
    code, words = await start_again(folder, request.app[HOME])
    if code:
        raise SpecError(f"{folder.name} did not go on (exit code {code}): {words}")
    raise web.HTTPSeeOther(f"/runs/{request.match_info['run']}")


def read_state(folder: Path) -> str:
    """The run's state in one word. Raises LedgerError."""
    with open_ledger(folder) as ledger:
        return judge_state(ledger.run().outcome, live=is_live(folder))


async def start_again(folder: Path, home: Path) -> tuple[int, str]:
    """Run the command for it, from the console's folder: its exit code, and the end of what it said. Raises SpecError."""
    command = (sys.executable, "-m", "rollout", "run", "-f", str(folder / "run.yaml"))
    process = await asyncio.create_subprocess_exec(
        *command,
        "--resume",
        folder.name,
        "--detach",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "ROLLOUT_HOME": str(home)},
        start_new_session=True,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), BEGIN_SECONDS_MAX)
    except TimeoutError as error:
        raise SpecError(
            f"{folder.name} has not begun within {BEGIN_SECONDS_MAX:.0f} s; it may still: look at its page again"
        ) from error
    return process.returncode or 0, visible(said.decode(errors="replace")[-WORDS_MAX:]).strip()
