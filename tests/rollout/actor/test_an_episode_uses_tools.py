"""Calls are parts of a reply; results are appended behind it, and are not trained on."""

from actor_fakes import END, CountingBuilder, LetterRenderer, SayingEngine, make_task

from rollout.actor.runner import RunnerParts, play
from rollout.turns import Budgets, Ending, State, ToolSpec
from rollout.types import Message, SamplingParams, ToolResult

ADD = ToolSpec(name="add", description="Adds.", parameters={"type": "object", "properties": {}})
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


class Adding(CountingBuilder):
    """Answers each call with the sum; without one the episode is over."""

    def __init__(self, later: tuple[ToolSpec, ...] | None = None) -> None:
        self.later, self.heard = later, []

    def build(self, row):
        builder = self

        class One:
            async def start(self):
                return State(messages=(Message(role="user", content="1+2"),), tools=(ADD,))

            async def step(self, action):
                builder.heard.append(action)
                if not action.calls:
                    return Ending(kind="answered")
                given = tuple(
                    ToolResult(
                        call_id=call.call_id, name=call.name, text=str(sum(call.arguments.values()))
                    )
                    for call in action.calls
                )
                return State(messages=(Message(role="tool", content=given),), tools=builder.later)

            async def close(self): ...

        return One()


def stage(builder, say, **more):
    return RunnerParts(
        engine=SayingEngine(say),
        renderer=LetterRenderer(),
        builders=lambda task: builder,
        seed=7,
        **more,
    )


def ask(samples=1):
    return make_task(0, samples=samples, sampling=SamplingParams(max_new_tokens=400))


async def test_a_call_is_answered_and_the_result_is_appended_and_not_trained_on():
    builder = Adding()
    (played,) = await play(
        [ask()], stage(builder, lambda prompt, seed: "3" if "3\n" in prompt else CALL)
    )
    (episode,) = played.episodes
    (call,) = builder.heard[0].calls
    assert (call.name, call.arguments, call.call_id) == ("add", {"a": 1, "b": 2}, "t0000c000")
    assert (episode.ending, episode.turn, episode.num_calls) == ("answered", 2, 1)
    text = "".join(chr(token) if token != END else "." for token in episode.token_ids)
    assert text == f"{CALL}.3\n3."
    assert episode.loss_mask == (*(1,) * (len(CALL) + 1), 0, 0, 1, 1)


async def test_more_calls_than_are_left_end_the_episode_and_none_of_them_is_run():
    builder = Adding()
    (played,) = await play(
        [ask()], stage(builder, lambda prompt, seed: CALL, budgets=Budgets(tool_calls=2))
    )
    assert [(one.ending, one.turn) for one in played.episodes] == [("tool-call-limit", 3)]
    assert len(builder.heard) == 2


async def test_tools_that_change_on_the_way_are_the_tasks_failure_by_name():
    other = ToolSpec(name="sub", description="Subtracts.", parameters={})
    (played,) = await play([ask()], stage(Adding((other,)), lambda prompt, seed: CALL))
    assert "tools of an episode cannot change" in played.failure.message
    (same,) = await play(
        [ask()], stage(Adding((ADD,)), lambda prompt, seed: "x" if "3\n" in prompt else CALL)
    )
    assert same.failure is None
