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

    silent = not offline and not is_offline_mode() and _did_not_answer(error)
    return HubUnreachable if silent else missing


def _did_not_answer(error: BaseException) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    chain = tuple(_chain(error))
    answers = [one.response.status_code for one in chain if isinstance(one, HfHubHTTPError)]
    if answers:
        return answers[0] >= 500 or answers[0] in BUSY
    silence = (ConnectionError, TimeoutError, LocalEntryNotFoundError)
    return any(isinstance(one, silence) for one in chain)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
