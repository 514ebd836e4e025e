"""The checks themselves, by kind. Each raises AssertionError, or what a run would raise."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import psutil
from google.protobuf.message import Message as Frame

from rollout.environments.memory import EpisodeMemory
from rollout.errors import InfrastructureError
from rollout.plugins.sidecar.client import (
    CALL,
    CLOSE,
    CONTINUE,
    DATA_ROWS,
    LEAVE,
    LIST,
    START,
    STEP,
    TRACK,
    PluginCall,
)
from rollout.plugins.sidecar.conformance import telling
from rollout.plugins.sidecar.conformance.subject import (
    CALL_SECONDS,
    Example,
    ExampleCall,
    Subject,
    step,
    tool_call,
)
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.keeper import GRACE_SECONDS
from rollout.plugins.sidecar.kinds.suite import RowPages, ask_page, ask_rows, heard_row
from rollout.plugins.sidecar.kinds.tool import heard_tools
from rollout.plugins.sidecar.manifest import Kind
from rollout.plugins.sidecar.memory import MemoryDesk
from rollout.plugins.sidecar.wire import failure_of, heard_turn
from rollout.tools.foreign import PARTED

Check = Callable[[Subject], None]
LARGE_CHARACTERS = 8 << 20
GIVEN_UP_SECONDS = 0.001
AT_ONCE_MAX = 16
LATER_FIELD = b"\xc2\x3e\x05later"
"""Field 1000 with a text: what a later version of the contract may send."""


def serves(subject: Subject) -> None:
    """It comes up, is healthy, says what plugin.yaml says, and takes its parameters."""
    subject.client.start()


def ignores_later_fields(subject: Subject) -> None:
    """A field that it does not know changes nothing."""
    if subject.scores:
        request = contract.ScoreRequest(samples=subject.samples()[:1])
        sent = request.SerializeToString() + LATER_FIELD
        answer = subject.client.ask(subject.score_call, sent, CALL_SECONDS)
        assert len(answer.scores) == 1, f"{len(answer.scores)} scores for one sample"
        return
    if subject.plugin.manifest.kind == "tool":
        said = subject.client.ask(LIST, LATER_FIELD, CALL_SECONDS)
        heard_tools(subject.plugin, said)
        return
    if subject.plugin.manifest.kind == "data":
        asked = contract.RowsRequest(split=subject.splits[0]).SerializeToString()
        RowPages().add(subject.client.ask(DATA_ROWS, asked + LATER_FIELD, CALL_SECONDS))
        return
    if subject.plugin.manifest.kind == "tracker":
        said = subject.client.ask(TRACK, LATER_FIELD, CALL_SECONDS)
        assert not said.HasField("failure"), said.failure.message
        return
    row = subject.examples[0].row_json
    began = contract.StartRequest(episode=uuid.uuid4().hex, row_json=row)
    desk = MemoryDesk(EpisodeMemory())
    heard_turn(subject.hear(START, began, desk, later=LATER_FIELD), first=True)
    subject.client.ask(CLOSE, contract.CloseRequest(episode=began.episode), CALL_SECONDS)


def takes_calls_at_once(subject: Subject) -> None:
    """As many calls at a time as it says it takes, up to 16."""
    number = min(AT_ONCE_MAX, subject.plugin.manifest.concurrency)
    with ThreadPoolExecutor(number) as pool:
        for one in [pool.submit(subject.once) for _ in range(2 * number)]:
            one.result()


def takes_large_requests(subject: Subject) -> None:
    """A row of 8 MiB is answered, or refused, and the next call is answered."""
    first = subject.examples[0]
    row = {**first.row, "large": "x" * LARGE_CHARACTERS}
    _asked(subject, msgspec.structs.replace(first, row=row)).once()
    subject.once()


def outlives_calls_that_are_given_up(subject: Subject) -> None:
    """A call whose deadline passes costs nobody else anything."""
    for _ in range(5):
        try:
            subject.once(GIVEN_UP_SECONDS)
        except InfrastructureError:
            continue
    subject.once()


def comes_up_again_after_a_kill(subject: Subject) -> None:
    """Killed, it is started again and answers."""
    subject.once()
    processes = subject.processes()
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=CALL_SECONDS)
    try:
        subject.once()
    except InfrastructureError:
        subject.once()


def ends_when_told(subject: Subject) -> None:
    """It ends at SIGTERM, in time, and leaves no process."""
    subject.once()
    processes = subject.processes()
    began = time.monotonic()
    subject.close()
    took = time.monotonic() - began
    left = [one for one in processes if one.is_running()]
    assert not left, f"{len(left)} of its processes go on: {left[0].name()}"
    assert took < GRACE_SECONDS, f"it did not end within {GRACE_SECONDS:g} s, and was killed"


def scores_every_sample(subject: Subject) -> None:
    """One finite score each, in order."""
    subject.score(subject.samples())


def scores_an_empty_batch(subject: Subject) -> None:
    """No score for no sample."""
    assert subject.score([]) == []


def scores_do_not_depend_on_the_batch(subject: Subject) -> None:
    """A sample scored alone is scored as in its batch."""
    samples = subject.samples()
    together = subject.score(samples)
    alone = [subject.score([one])[0] for one in samples]
    assert together == alone, f"{together} together, {alone} alone"


def plays_every_example(subject: Subject) -> None:
    """Each example's replies are heard, from start to close."""
    for example in subject.examples:
        subject.play(example)


def does_not_know_other_episodes(subject: Subject) -> None:
    """A reply to an episode that was never started is infrastructure's, so that a run starts it afresh."""
    asked: list[tuple[PluginCall, Frame]] = [(STEP, step(uuid.uuid4().hex, 0, "hello"))]
    if subject.client.uses_memory:
        asked.append((CONTINUE, contract.ContinueRequest(episode=uuid.uuid4().hex)))
    for call, request in asked:
        answer = subject.client.ask(call, request, CALL_SECONDS)
        assert answer.WhichOneof("outcome") == "failure", "it answered as if it knew the episode"
        owner = answer.failure.owner
        assert owner == contract.OWNER_INFRASTRUCTURE, f"the failure's owner is {owner}, expected 3"


def closes_twice(subject: Subject) -> None:
    """Closing an episode that is closed, or was never started, does nothing."""
    request = contract.CloseRequest(episode=uuid.uuid4().hex)
    for _ in range(2):
        subject.client.ask(CLOSE, request, CALL_SECONDS)


def lists_the_same_tools(subject: Subject) -> None:
    """Names, descriptions and schemas that a prompt may have, the same each time and after a start."""
    first = subject.tools()
    assert subject.tools() == first, "the tools are others when it is asked again"
    subject.close()
    assert subject.tools() == first, "the tools are others once it was started again"


def answers_every_example(subject: Subject) -> None:
    """Each example's calls are answered, those that are wrong with what is wrong."""
    for example in subject.examples:
        subject.use(example)


def tells_wrong_calls(subject: Subject) -> None:
    """Arguments that no tool takes are an error to the policy, and no failure."""
    name = subject.tools()[0].name.partition(PARTED)[2]
    wrong = ExampleCall(name=name, arguments={"no-such-argument": [None]})
    (said,) = subject.use(msgspec.structs.replace(subject.examples[0], calls=(wrong,)))
    assert said.is_error, f"it took arguments that it does not know: {said.text[:80]!r}"


def does_a_call_once(subject: Subject) -> None:
    """The same call asked for again, by its id, is answered as before, at once with the first or after it."""
    example = subject.examples[0]
    call = (example.calls or (ExampleCall(name=subject.tools()[0].name.partition(PARTED)[2]),))[0]
    request = tool_call(uuid.uuid4().hex, example, call, "once")
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(subject.client.ask, CALL, request, CALL_SECONDS) for _ in range(2)]
        said = [one.result() for one in asked]
    said.append(subject.client.ask(CALL, request, CALL_SECONDS))
    assert said[0] == said[1] == said[2], "the same call was answered in two ways"


def leaves_twice(subject: Subject) -> None:
    """Closing an episode that is closed, or that made no call, does nothing."""
    request = contract.CloseRequest(episode=uuid.uuid4().hex)
    for _ in range(2):
        subject.client.ask(LEAVE, request, CALL_SECONDS)


def gives_the_same_rows(subject: Subject) -> None:
    """The rows of each split in order, the same each time and after a start."""
    first = {split: ask_rows(subject.client, split) for split in subject.splits}
    assert any(first.values()), f"there is no row in {', '.join(subject.splits)}"
    subject.close()
    again = {split: ask_rows(subject.client, split) for split in subject.splits}
    assert again == first, "the rows are others once it was started again"


def gives_rows_from_anywhere(subject: Subject) -> None:
    """Those from any place on, again and out of order."""
    for split in subject.splits:
        rows = ask_rows(subject.client, split)
        for start in sorted({len(rows) - 1, len(rows) // 2, 0} - {-1}, reverse=True):
            page = _page(subject, split, start)
            wanted = rows[start : start + len(page)]
            assert page, f"{split} has {len(rows)} rows, and gave none from {start} on"
            assert page == wanted, f"{split}: the rows from {start} on are others when asked again"


def _page(subject: Subject, split: str, start: int) -> list[dict[str, Any]]:
    """One page that starts there, checked as such."""
    page = ask_page(subject.client, split, start, CALL_SECONDS)
    if page.HasField("failure"):
        raise failure_of(page.failure)
    return [heard_row(text, start + place) for place, text in enumerate(page.rows_json)]


def _asked(subject: Subject, example: Example) -> Subject:
    """The same plugin, asked about another example."""
    other = replace(subject, examples=(example,))
    other.client = subject.client
    return other


COMMON: tuple[Check, ...] = (
    ignores_later_fields,
    takes_calls_at_once,
    takes_large_requests,
    outlives_calls_that_are_given_up,
    comes_up_again_after_a_kill,
    ends_when_told,
)
OF_KIND: Mapping[str, tuple[Check, ...]] = {
    "reward": (scores_every_sample, scores_an_empty_batch, scores_do_not_depend_on_the_batch),
    "environment": (plays_every_example, does_not_know_other_episodes, closes_twice),
    "evaluation": (
        gives_the_same_rows,
        scores_every_sample,
        scores_an_empty_batch,
        scores_do_not_depend_on_the_batch,
    ),
    "tool": (
        lists_the_same_tools,
        answers_every_example,
        tells_wrong_calls,
        does_a_call_once,
        leaves_twice,
    ),
    "tracker": telling.CHECKS,
    "data": (gives_the_same_rows, gives_rows_from_anywhere),
}


def checks_of(kind: Kind) -> Iterator[Check]:
    """Those that are made of a kind: data is sent nothing that could be large."""
    yield from OF_KIND[kind]
    yield from (one for one in COMMON if kind != "data" or one is not takes_large_requests)
