"""One child process, from its start to its end, for a parent that may be told to go."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from rollout.common.child_processes import signal_group, start_tied
from rollout.common.stacks import END, ask_for_stacks
from rollout.pods.output_tail import OutputTail
from rollout.pods.telling import Telling
from rollout.protocol.messages import EvidenceMoment

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
SHOW_SECONDS_MAX = 2.0
"""How long a child that is told to go may take to show where it stands."""


def run_child(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    told: threading.Event,
    over: threading.Event | None = None,
    telling: Telling | None = None,
) -> int:
    """Run ``python -m module``; its exit code as a shell gives it.

    ``told`` has it show where it stands and passes SIGTERM on, once; ``over`` ends it at once. Nothing that it started is left.
    ``telling`` hears what it writes, and how it ended.
    """
    telling = telling or Telling()
    process = start_tied(
        module, *arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _follow(process, telling.tail)
    show_until: float | None = None
    asked = False
    while (code := _wait(process)) is None:
        if over is not None and over.is_set():
            signal_group(process, signal.SIGKILL)
        elif told.is_set() and show_until is None:
            show_until = _ask(process)
        elif show_until is not None and not asked and _is_shown(process, telling.tail, show_until):
            telling.say("told")
            process.terminate()
            asked = True
        telling.say("running")
    signal_group(process, signal.SIGKILL)
    telling.tail.drain()
    telling.say(_ending(code, asked=told.is_set() or (over is not None and over.is_set())))
    log.info("child ended module=%s code=%d", module, code)
    return code if code >= 0 else 128 - code


def _ending(code: int, *, asked: bool) -> EvidenceMoment:
    if not code:
        return "clean"
    return "left" if asked else "failed"


def _ask(process: subprocess.Popen[bytes]) -> float:
    """Ask it where it stands; until when its answer is waited for."""
    answers = process.pid in ask_for_stacks(process.pid)
    return time.monotonic() + (SHOW_SECONDS_MAX if answers else 0.0)


def _is_shown(process: subprocess.Popen[bytes], tail: OutputTail, until: float) -> bool:
    return time.monotonic() > until or f"{END} {process.pid} " in tail.text()


def _follow(process: subprocess.Popen[bytes], tail: OutputTail) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    tail.follow(process.stdout, 1)
    tail.follow(process.stderr, 2)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None
