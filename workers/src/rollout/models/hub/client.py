"""How the hub's client library waits: never without a bound.

The library reads some answers without a timeout and waits as long as a hub asks it to. Both are bounded here, for every
request that it makes in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from rollout.common.hub import causes, did_not_answer, expected_errors
from rollout.errors import HubUnreachable

ANSWER_SECONDS_MAX = 30.0
"""Of silence, in one answer, where the library itself sets no bound."""
ASKED_WAIT_SECONDS_MAX = 60
"""A hub that asks for a longer wait (``Retry-After``) is told to the user instead of waited for."""
PAUSES_SECONDS = (1.0, 2.0)
"""Before the second and the third time of a question that the library asks only once."""

Answer = TypeVar("Answer")


def bound_waits() -> None:
    """Bound the waits of the hub's library, from the next request on; idempotent."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import get_session

    if refuse_long_wait not in get_session().event_hooks["response"]:
        set_client_factory(_build_client)


def ask(question: Callable[[], Answer]) -> Answer:
    """What ``question()`` gives, asked at most three times while the hub is silent or busy; its last error else."""
    for pause in PAUSES_SECONDS:
        try:
            return question()
        except expected_errors() as error:
            if not did_not_answer(error) or _is_nobody_there(error):
                raise
            time.sleep(pause)
    return question()


def understand(question: Callable[[], Answer]) -> Answer:
    """What ``question()`` gives. Raises HubUnreachable for an answer that is none of a hub, such as a network's log-in page."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError

    try:
        return question()
    except (HFValidationError, OSError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        said = f"{type(error).__name__}: {str(error)[:160]}"
        raise HubUnreachable(
            f"what answers at {constants.ENDPOINT} is no hub ({said}); check HF_ENDPOINT, proxy and firewall"
        ) from error


def refuse_long_wait(response: Any) -> None:
    """Raise HubUnreachable for an answer that asks to come back later than ``ASKED_WAIT_SECONDS_MAX``."""
    asked = response.headers.get("Retry-After", "").strip()
    if response.status_code < 400 or not asked.isdigit() or int(asked) <= ASKED_WAIT_SECONDS_MAX:
        return
    raise HubUnreachable(
        f"the hub {response.url.host} answers {response.status_code} and asks to wait {asked} s (Retry-After), at"
        f" most {ASKED_WAIT_SECONDS_MAX} s are waited for; try again then, or set HF_TOKEN: with a token more is allowed"
    )


def _build_client() -> Any:
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], _bound_answer],
        "response": [*hooks["response"], refuse_long_wait],
    }
    return client


def _bound_answer(request: Any) -> None:
    given = request.extensions.get("timeout") or {}
    names = ("connect", "read", "write", "pool")
    bounded = {name: given.get(name) or ANSWER_SECONDS_MAX for name in names}
    request.extensions["timeout"] = bounded


def _is_nobody_there(error: BaseException) -> bool:
    """Whether no connection came about: without a network, a cache is looked into at once."""
    import httpx2

    return any(isinstance(one, httpx2.ConnectError) for one in causes(error))
