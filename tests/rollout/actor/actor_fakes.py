"""Parts of an actor that compute nothing: letters are tokens, the engine says what it is told to."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rollout.protocol.messages import Task
from rollout.rendering.tool_calls import parse_reply
from rollout.turns import Ending, State
from rollout.types import Completion, GenerateRequest, Message, SamplingParams, WeightVersion

END = 0
VERSION = WeightVersion(lineage=0, step=3, digest="blake3:ab", object="blake3:cd")


class LetterRenderer:
    """Each letter is its code; an assistant's turn ends with END, others with a newline."""

    stop_token_ids = (END,)

    def render_prompt(self, messages: Sequence[Message], tools=()) -> tuple[int, ...]:
        return self.render_training(messages)[0]

    def render_next(self, reply, added):
        return (END, *self.render_training(added)[0])

    def parse_reply(self, text, said, tools, turn):
        return parse_reply(text, "hermes", tools, turn)

    def render_training(self, messages):
        ids, mask = [], []
        for message in messages:
            said = message.role == "assistant"
            ids += [*map(ord, message.text), END if said else ord("\n")]
            mask += [int(said)] * (len(message.text) + 1)
        return tuple(ids), tuple(mask)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token != END)

    def survives_text(self, token_ids: Sequence[int]) -> bool:
        return True


class SayingEngine:
    """Replies ``say(prompt text, seed)``; counts calls; digests are what ``digests`` gives in turn."""

    def __init__(self, say: Callable[[str, int], str], digests: Sequence[str] = ()) -> None:
        self.say = say
        self.calls: list[Sequence[GenerateRequest]] = []
        self.loads: list[WeightVersion] = []
        self.digests = list(digests)
        self.version = None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def interrupt(self) -> None: ...

    def progress(self):
        return ()

    async def load(self, version: WeightVersion, weights: Path, changed=None) -> str:
        self.loads.append(version)
        self.version = version
        return self.digests.pop(0) if self.digests else version.digest

    async def generate(self, requests):
        self.calls.append(requests)
        return [[self._complete(request, seed) for seed in request.seeds] for request in requests]

    def _complete(self, request: GenerateRequest, seed: int) -> Completion:
        text = self.say("".join(map(chr, request.prompt_ids)), seed)
        limit = request.sampling.max_new_tokens
        ids = (*map(ord, text), END)[:limit]
        finish = "stop" if ids[-1] == END else "length"
        return Completion(token_ids=ids, logprobs=(-0.5,) * len(ids), finish=finish)


class CountingEnv:
    """Asks for ``turns`` replies."""

    def __init__(self, question: str, turns: int) -> None:
        self.question = question
        self.turns = turns

    async def start(self):
        return State(messages=(Message(role="user", content=self.question),))

    async def step(self, action):
        self.turns -= 1
        if self.turns == 0:
            return Ending()
        return State(messages=(Message(role="user", content=f"not {action.text}"),))

    async def close(self): ...


class CountingBuilder:
    def __init__(self, turns: int = 1) -> None:
        self.turns = turns

    def source(self, split, seed):
        return None

    def build(self, row):
        return CountingEnv(row["prompt"], self.turns)


def make_task(ordinal: int = 0, samples: int = 2, **changes) -> Task:
    fields = {
        "task_id": f"t{ordinal}",
        "kind": "train",
        "ordinal": ordinal,
        "row": {"prompt": f"q{ordinal}", "answer": f"a{ordinal}"},
        "num_samples": samples,
        "attempt": 1,
        "epoch": 1,
        "lease_seconds": 30.0,
        "version": VERSION,
        "sampling": SamplingParams(max_new_tokens=8),
    }
    return Task(**{**fields, **changes})
