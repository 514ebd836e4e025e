"""Ranks of a learner as forked processes."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

from rollout.learner.model.parallel import Parallel, join

RANKS = 2


def spawn(work, *args, ranks: int = RANKS) -> list:
    """``work(rank, *args)`` in forked processes that torchrun could have started; their results."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child(rank: int) -> None:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        try:
            queue.put((rank, work(rank, *args), ""))
        except BaseException:  # noqa: BLE001 - handed to the test process
            queue.put((rank, None, traceback.format_exc()))

    processes = [context.Process(target=child, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    found = sorted((queue.get() for _ in processes), key=lambda item: item[0])
    for process in processes:
        process.join(30)
    assert not any(error for _, _, error in found), [error for _, _, error in found]
    return [result for _, result, _ in found]


def on_two_ranks(work: Callable[[Parallel], Any], *, sharded: bool = True) -> list[Any]:
    """What ``work`` gives on each of two ranks that have joined."""

    def live(rank: int) -> Any:
        del rank
        parallel = join(sharded=sharded)
        result = work(parallel)
        parallel.close()
        return result

    return spawn(live)
