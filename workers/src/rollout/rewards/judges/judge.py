"""``judge``: a model behind an OpenAI-compatible server says how good an answer is, or which of a group's are better.

Calls go out together, with deadlines and back-off. A judge that is away or answers 5xx leaves an answer unscored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import httpx

from rollout.errors import SpecError
from rollout.rewards.chat_endpoint import Asked, CallDeadline, Endpoint, Said, ask, open_client
from rollout.rewards.judges.panel import COMPARISONS, JudgePanel
from rollout.rewards.judges.replies import Manner, Replies
from rollout.types import Completion, Message, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Parameters of the reward ``judge``.

    ``concurrency``, ``retries`` and ``per_group`` are the reward's own fields.
    """

    url: str
    """Of the server, ending in ``/v1``."""
    model: str
    """As the server calls it."""
    key_env: str = ""
    """Variable that holds a key; empty: none is sent."""
    instructions: str = ""
    """Stand before the question and ask for a last line ``Score: N`` (in a comparison as ours do); empty: ours."""
    reference: bool = True
    """The judge is shown the row's answer."""
    scale: float = 10.0
    """Highest score that it may say; the reward is the share of it."""
    max_tokens: int = 512
    """Of one reply of the judge."""
    call_seconds: float = 60.0
    """Bound one call."""
    deadline_seconds: float = 54.0
    """Bound all of a batch (the reward's ``timeoutSeconds`` less a tenth, unless given)."""
    prompt_price: float = 0.0
    """Of a million tokens of questions, in any currency."""
    completion_price: float = 0.0
    """Of a million tokens of replies."""
    compare: str = COMPARISONS[0]
    """How the samples of a group are compared, where they are: ``pairs`` or ``ranking``."""
    concurrency: int = 8
    retries: int = 5
    per_group: bool = False

    def __post_init__(self) -> None:
        self._manner()
        if self.compare not in COMPARISONS:
            raise ValueError(f"compare: expected {' or '.join(COMPARISONS)}, got {self.compare!r}")
        Endpoint(url=self.url, model=self.model, tries_max=self.retries + 1)
        if not self.call_seconds > 0 or not self.deadline_seconds > 0:
            raise ValueError("expected callSeconds and deadlineSeconds above 0")

    def __call__(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """``score`` in [0, 1] with the tokens and the price of asking; ``per_group``: of the samples of one group.

        Raises UnscoredRows naming those that the judge did not score, SpecError for an address or key that is refused.
        """
        waiting = CallDeadline(until=time.monotonic() + self.deadline_seconds)
        endpoint = self._endpoint()
        with open_client(self.concurrency) as client:
            put = partial(_put, client, endpoint, waiting)
            panel = JudgePanel(
                verdicts=Replies(self._manner(), put),
                compare=self.compare if self.per_group else "",
                reference=self.reference,
                concurrency=self.concurrency,
            )
            return panel.judge(prompts, completions, rows)

    def _manner(self) -> Manner:
        return Manner(
            judge=self.model,
            instructions=self.instructions,
            scale=self.scale,
            max_tokens=self.max_tokens,
            prompt_price=self.prompt_price,
            completion_price=self.completion_price,
        )

    def _endpoint(self) -> Endpoint:
        key = os.environ.get(self.key_env, "") if self.key_env else ""
        if self.key_env and not key:
            raise SpecError(
                f"reward judge: the variable {self.key_env} is not set; give it in env, from a Secret"
            )
        return Endpoint(
            url=self.url,
            model=self.model,
            key=key,
            timeout_seconds=self.call_seconds,
            tries_max=self.retries + 1,
        )


def _put(
    client: httpx.Client, endpoint: Endpoint, waiting: CallDeadline, question: str, asked: Asked
) -> Said:
    return ask(client, endpoint, [{"role": "user", "content": question}], asked, waiting)
