"""Ranks of a learner as processes of their own.

They are forked from a server that has loaded what a rank needs and nothing else: a test process has
threads of its own by then, and a fork of those may crash or wait for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from cluster.control.ports import find_free_port
from rollout.learner.model.parallel import Parallel, join

RANKS = 2
DEADLINE_SECONDS = 240.0
LAST_WORDS_SECONDS = 10.0
"""How long the others may go on once one rank has failed: they would wait for it in a collective."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pytest", "peft", "torch.distributed.fsdp", "rollout.learner.build", "rollout.learner.loop"]
)


def spawn(work: Callable[..., Any], *args: Any, ranks: int = RANKS) -> list[Any]:
    """``work(rank, *args)`` in processes that torchrun could have started; their results by rank."""
    payload, port = pack((work, args)), find_free_port()
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        CONTEXT.Process(target=live, args=(rank, ranks, port, payload, sender), daemon=True)
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()
    try:
        answers = receive([receiver for receiver, _ in pipes])
        for process in processes:
            process.join(LAST_WORDS_SECONDS)
    finally:
        for process in processes:
            process.kill()
    failures = [told(*pair) for pair in zip(processes, answers, strict=True)]
    assert not any(failures), "\n".join(failures)
    return [result for result, _ in answers]


def on_two_ranks(
    work: Callable[[Parallel], Any], *, sharded: bool = True, sequence: int = 1
) -> list[Any]:
    """What ``work`` gives on each of two ranks that have joined."""

    def joined(rank: int) -> Any:
        del rank
        parallel = join(sharded=sharded, sequence=sequence)
        result = work(parallel)
        parallel.close()
        return result

    return spawn(joined)


def live(rank: int, ranks: int, port: int, payload: bytes, sender: Connection) -> None:
    """The whole life of a rank: its result and "", or None and its traceback."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    for name in ("_pickler", "_unpickler"):  # what every object collective of torch's goes through
        setattr(torch.distributed.distributed_c10d, name, refuse_pickles)
    try:
        work, args = cloudpickle.loads(payload)
        answer = (work(rank, *args), "")
    except BaseException:  # noqa: BLE001 - handed to the test process
        answer = (None, traceback.format_exc())
    sender.send_bytes(pack(answer))


def refuse_pickles(*_: object) -> None:
    """Whoever reaches a rank's port could have it unpickle code."""
    raise AssertionError("a pickle between ranks")


def receive(receivers: Sequence[Connection]) -> list[tuple[Any, str]]:
    """An answer of each; "no answer" of one that died, or that the failure of another held up."""
    answers = dict.fromkeys(receivers, (None, "no answer"))
    waiting, seconds = set(receivers), DEADLINE_SECONDS
    while waiting and (ready := wait(list(waiting), seconds)):
        for receiver in ready:
            waiting.remove(receiver)
            try:
                answers[receiver] = cloudpickle.loads(receiver.recv_bytes())
            except EOFError:
                answers[receiver] = (None, "died without a word")
        if any(answers[receiver][1] for receiver in set(receivers) - waiting):
            seconds = LAST_WORDS_SECONDS
    return list(answers.values())


def told(process: BaseProcess, answer: tuple[Any, str]) -> str:
    """What went wrong with a rank; "" when nothing did."""
    return answer[1] and f"{process.name} (exit code {process.exitcode}): {answer[1]}"


def pack(value: Any) -> bytes:
    """Pickled; what is defined in tests by value, for no other process can import it."""
    here = str(Path(__file__).parents[2])
    for module in list(sys.modules.values()):
        if module.__name__ != __name__ and (getattr(module, "__file__", None) or "").startswith(
            here
        ):
            cloudpickle.register_pickle_by_value(module)
    return cloudpickle.dumps(value)
