"""Sources of reward that say what a test tells them, in place of processes."""

from __future__ import annotations

from rollout.errors import RewardError, RewardUnavailable
from rollout.rewards.calls import RewardBatch, SourceCalls
from rollout.rewards.source import RewardSource
from rollout.types import Completion, Message


def source(name="mine", **fields):
    """A source of the user's, which nothing runs."""
    return RewardSource(name=name, module="m", function="f", **fields)


def samples(*texts, groups=None, rows=None):
    """A batch with these replies to one question."""
    return RewardBatch(
        prompts=[(Message(role="user", content="q"),)] * len(texts),
        completions=[
            Completion(token_ids=(1,), logprobs=(0.0,), finish="stop", text=text) for text in texts
        ],
        rows=rows or [{"prompt": "q", "answer": "a"}] * len(texts),
        groups=groups,
    )


class Told:
    """Answers calls in order: a list of values, a function of the replies, or an error that is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def start(self):
        """Nothing to start."""

    def close(self):
        """Nothing to free."""

    def score(self, prompts, completions, rows):
        """The next answer; the last one stays."""
        texts = [one.text for one in completions]
        self.asked.append(texts)
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(said, RewardError):
            raise said
        return said(texts) if callable(said) else said


def away(*lost, values=()):
    """The failure of what lies outside, for these places of a call."""
    return RewardUnavailable("judge answered HTTP 503", lost, values)


def calls(runner, path=None, pauses=None, **fields):
    """One source over a runner; ``pauses`` hears how long would be waited."""
    sleep = (lambda _: None) if pauses is None else pauses.append
    return SourceCalls(source(**fields), path, opens=lambda _: runner, sleep=sleep)
