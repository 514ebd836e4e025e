"""One child process, from its start to its end, for a parent that may be told to go."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from rollout.common.child_processes import signal_group
from rollout.common.parent_death import tied_argv
from rollout.common.stacks import ask_for_stacks

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2


def run_child(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    told: threading.Event,
    over: threading.Event | None = None,
) -> int:
    """Run ``python -m module``; its exit code as a shell gives it.

    ``told`` has it show where it stands and passes SIGTERM on, once; ``over`` ends it at once. Nothing that it started is left.
    """
    process = subprocess.Popen(
        tied_argv(module, *arguments, parent=os.getpid()),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    shown = asked = False
    while (code := _wait(process)) is None:
        if over is not None and over.is_set():
            signal_group(process, signal.SIGKILL)
        elif told.is_set() and not shown:
            ask_for_stacks(process.pid)
            shown = True
        elif shown and not asked:
            process.terminate()
            asked = True
    signal_group(process, signal.SIGKILL)
    log.info("child ended module=%s code=%d", module, code)
    return code if code >= 0 else 128 - code


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None
