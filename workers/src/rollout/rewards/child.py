"""The child process that runs one source of reward: ``python -m rollout.rewards.child FDS``.

Reads requests from one pipe and answers on another; what the user's code prints goes to stderr. On SIGUSR1 it
shows its stacks in the log of whoever started it; on SIGUSR2 in what it printed itself, for the parent to read. Ends
when its parent does: a thread watches a third pipe, and on Linux the kernel ends it when that closes, so that even a
function that hangs in C and lets no thread run leaves no orphan. What the user's code starts is below it, also where it
has been detached: whoever ends it ends that, too.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rollout.common.frames import read_frame, write_frame
from rollout.common.stacks import show_threads_on_signal
from rollout.errors import InfrastructureError, RolloutError, UnscoredRows
from rollout.plugins.guard import adopt
from rollout.plugins.user_code import describe_failure
from rollout.rewards.frames import Request, RewardAnswer
from rollout.rewards.source import RewardSource, load_reward


def main(arguments: Sequence[str]) -> None:
    """Serve until the parent closes the pipe."""
    requests, answers, alive, log = (int(text) for text in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    show_threads_on_signal(log)
    faulthandler.register(signal.SIGUSR2, all_threads=False)
    _be_ended_with(alive)
    adopt()
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    try:
        source = read_frame(requests, RewardSource)
        function = load_reward(source)
    except RolloutError as error:
        write_frame(answers, RewardAnswer(failure=str(error)))
        return
    write_frame(answers, RewardAnswer())
    while True:
        try:
            request = read_frame(requests, Request)
        except EOFError:
            return
        _send(answers, _score(function, request, alone=not source.per_group))


def _be_ended_with(alive: int) -> None:
    """Have the kernel signal this process once the pipe's other end has closed: SIGIO, which ends a process (fcntl(2))."""
    if sys.platform == "linux":
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(alive, fcntl.F_GETFL)
        fcntl.fcntl(alive, fcntl.F_SETFL, flags | os.O_ASYNC)


def _end_with_parent(alive: int) -> None:
    os.read(alive, 1)
    os._exit(0)


def _score(function: Callable[..., Any], request: Request, *, alone: bool) -> RewardAnswer:
    """``alone`` False: the function compares samples, and means nothing for one of them."""
    try:
        values = function(request.prompts, request.completions, request.rows)
        return RewardAnswer(values=_plain(values))
    except UnscoredRows as error:
        values = _plain(error.values)
        return RewardAnswer(failure=describe_failure(error), lost=tuple(error.rows), values=values)
    except InfrastructureError as error:
        lost = _find_lost(function, request) if alone else tuple(range(len(request.rows)))
        return RewardAnswer(failure=describe_failure(error), lost=lost)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything: it is the answer
        return RewardAnswer(
            failure=describe_failure(error),
            row_index=_first_failing(function, request) if alone else None,
        )


def _first_failing(function: Callable[..., Any], request: Request) -> int | None:
    """The first row that fails when it is scored alone; None when none does."""
    for index in range(len(request.rows)):
        one = slice(index, index + 1)
        try:
            function(request.prompts[one], request.completions[one], request.rows[one])
        except Exception:  # noqa: BLE001 - this is the row that was looked for
            return index
    return None


def _find_lost(function: Callable[..., Any], request: Request) -> tuple[int, ...]:
    """The rows that cannot be scored even alone; all of them where each can, and together they cannot."""
    everything = range(len(request.rows))
    found = tuple(index for index in everything if _is_out_of_reach(function, request, index))
    return found or tuple(everything)


def _is_out_of_reach(function: Callable[..., Any], request: Request, index: int) -> bool:
    one = slice(index, index + 1)
    try:
        function(request.prompts[one], request.completions[one], request.rows[one])
    except InfrastructureError:
        return True
    except Exception:  # noqa: BLE001 - a fault of the user's code, which the batch of the others will show
        return False
    return False


def _plain(values: Any) -> Any:
    """Tensors and arrays as lists of Python numbers; the rest as it is."""
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, set | frozenset):
        raise TypeError("it returned a set, which has no order; return a list")
    if not isinstance(values, Sequence) or isinstance(values, str):
        return values
    return [value.item() if hasattr(value, "item") else value for value in values]


def _send(answers: int, answer: RewardAnswer) -> None:
    try:
        write_frame(answers, answer)
    except (TypeError, AttributeError, ValueError, RecursionError) as error:  # what it returned
        write_frame(answers, RewardAnswer(failure=f"its return value cannot be sent: {error}"))


if __name__ == "__main__":
    main(sys.argv[1:])
