"""Whether a cloud's server answers at all, and at what time: asked without credentials."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

import httpx

from rollout.clouds.contract import Explained, Trouble
from rollout.doctor.judge import Diagnosis

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
SKEW_SECONDS_MAX = 300.0
"""Amazon refuses more than 900, Google's tokens more than about 600."""
SKEW_SECONDS_NOTED = 30.0


def judge_server(
    address: str, explain: Callable[[Trouble], Explained], now: Callable[[], float]
) -> Diagnosis:
    """The server's clock beside this machine's; ``explain`` is told of what does not answer. ``now``: Unix seconds."""
    limit = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    try:
        date = httpx.head(address, timeout=limit, follow_redirects=False).headers.get("Date", "")
        skew = now() - parsedate_to_datetime(date).astimezone(UTC).timestamp()
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        said = Trouble(status=0, code=type(error).__name__, said=str(error))
        explained, found = explain(said), f"{address}: {said.found}"
        return broken("server", found, explained.costs, explained.fix)
    except (ValueError, TypeError):
        costs = "a clock that is wrong shows in refusals only"
        fix = "see what stands before the server: its answers have no date"
        return Diagnosis(name="clock", state="lack", found="not compared", costs=costs, fix=fix)
    return _judge_skew(skew)


def broken(name: str, found: str, costs: str, fix: str) -> Diagnosis:
    """A finding that ends what was meant to be done."""
    return Diagnosis(name=name, state="broken", found=found, costs=costs, fix=fix)


def _judge_skew(skew: float) -> Diagnosis:
    found = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    fix = "set this machine's clock (chrony, or the time service of the node)"
    if abs(skew) > SKEW_SECONDS_MAX:
        return broken("clock", found, "signed calls and tokens are refused", fix)
    if abs(skew) > SKEW_SECONDS_NOTED:
        costs = "nothing yet: calls are refused from some minutes on"
        return Diagnosis(name="clock", state="lack", found=found, costs=costs, fix=fix)
    return Diagnosis(name="clock", state="ok", found="that of the server")
