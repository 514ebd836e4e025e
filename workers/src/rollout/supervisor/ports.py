"""The port of loopback at which a run on this machine is asked for its status and figures."""

from __future__ import annotations

import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from rollout.errors import SpecError

METRICS_PORT_VARIABLE = "ROLLOUT_METRICS_PORT"


def read_metrics_port(environment: Mapping[str, str]) -> int:
    """The port of loopback where the run's figures are asked for, under ``/metrics``; 0: any. Raises SpecError."""
    given = environment.get(METRICS_PORT_VARIABLE, "")
    if not given:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) <= 5 and 0 < int(given) < 1 << 16):
        raise SpecError(f"{METRICS_PORT_VARIABLE} is {given[:80]!r}; write a port, 1 to 65535")
    return int(given)


@contextmanager
def reserved_port(wanted: int = 0) -> Generator[int]:
    """A loopback port that nobody else is given while we hold it; 0: any. Raises SpecError for one that is taken.

    Bound without sharing, so that it is ours alone, then marked as shared (SO_REUSEADDR): a bound
    socket that never listens lets the coordinator listen beside it, also when it is started again. One that was asked for may
    have been the last run's: only who listens there is in the way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(wanted != 0))
        try:
            held.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise SpecError(
                f"{METRICS_PORT_VARIABLE} is {wanted}, which cannot be listened on: {error}; choose another one"
            ) from error
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield held.getsockname()[1]
