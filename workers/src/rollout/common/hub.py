"""Whether the Hugging Face hub was silent, or said that it does not have what was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from rollout.errors import HubUnreachable, RolloutError

BUSY = frozenset({408, 425, 429})
"""Answers below 500 that another try may change."""


def judge(
    error: BaseException, missing: type[RolloutError], *, offline: bool = False
) -> type[RolloutError]:
    """HubUnreachable where asking again may help, from what the hub's libraries raised; else ``missing``.

    ``missing`` for an answer (no such repository, no access), and offline (also by ``HF_HUB_OFFLINE=1``), where it stays so.
    """
    from huggingface_hub import is_offline_mode

    silent = not offline and not is_offline_mode() and did_not_answer(error)
    return HubUnreachable if silent else missing


def did_not_answer(error: BaseException) -> bool:
    """Whether the hub was silent or busy, or its answer broke off: asking again may help."""
    from httpx2 import TransportError
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    chain = tuple(causes(error))
    answers = [one.response.status_code for one in chain if isinstance(one, HfHubHTTPError)]
    if answers:
        return answers[0] >= 500 or answers[0] in BUSY
    silence = (ConnectionError, TimeoutError, TransportError, LocalEntryNotFoundError)
    return any(isinstance(one, silence) for one in chain)


def expected_errors() -> tuple[type[Exception], ...]:
    """What the hub's libraries raise for what a hub, a network, a disk or a bad name did."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import HFValidationError, RevisionResolutionError

    return HTTPError, RevisionResolutionError, HFValidationError, OSError


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it, nearest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
