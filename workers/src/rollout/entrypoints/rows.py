"""Opens a run's data with its author's code and environment, and gives rows: ``python -m rollout.entrypoints.rows``.

Holds no credential of the run: no ledger, no bucket, no token, no key. Whoever asks (the coordinator) has the
other end of a socket that this process inherited, and gets data; it ends with that connection.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys

from rollout.plugins.guard import bound_memory, drop_rights, guard


def main() -> int:
    """Serve one connection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--descriptor", type=int, required=True, help="a connected socket that was inherited"
    )
    parser.add_argument("--memory-bytes-max", type=int, default=None, help="of each process")
    arguments = parser.parse_args()
    line = arguments.descriptor
    return guard(line, lambda: serve(line, arguments.memory_bytes_max))


def serve(line: int, memory_bytes_max: int | None) -> None:
    """Answer until the other end closes. Runs the author's code."""
    from rollout.common.frames import read_frame, write_frame
    from rollout.entrypoints.row_desk import RowDesk
    from rollout.plugins.row_messages import Question, fail

    drop_rights()
    if memory_bytes_max is not None:
        bound_memory(memory_bytes_max)
    os.set_blocking(line, True)
    fcntl.fcntl(line, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    desk = RowDesk()
    while True:
        try:
            question = read_frame(line, Question)
        except EOFError:
            return
        answer = desk.answer(question)
        try:
            write_frame(line, answer)
        except BrokenPipeError:
            return
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            write_frame(line, fail(error))


if __name__ == "__main__":
    sys.exit(main())
