"""A program that asks an endpoint for replies is an environment: its requests are turns, its row only grows."""

import pytest
from agent_programs import agent, play_agent, written

from rollout.errors import InfrastructureError
from rollout.tools.sandbox.agent_sandbox import AgentSandbox

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("sandbox_host")]

TALK = """
said = [user(sys.stdin.read())]
for hint in ("more", "last"):
    said.append({k: v for k, v in chat(said).items() if k in ("role", "content")})
    said.append(user(hint))
chat(said)
open("out", "w").write("done")
"""


async def test_a_conversation_that_grows_is_one_row_of_what_was_sampled():
    played, engine = await play_agent(
        agent(TALK), lambda prompt, seed: f" r{prompt.count(chr(10))} "
    )

    (episode,) = played.episodes
    assert (episode.ending, episode.turn, episode.forks) == ("stop", 3, 0)
    assert written(episode.prompt_ids) == "q\n"
    assert written(episode.token_ids) == " r1 .more\n r2 .last\n r3 ."
    assert sum(episode.loss_mask) == 15
    assert [len(call) for call in engine.calls] == [1, 1, 1]


TOOLS = """
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
said = [user("1+2")]
reply = chat(said, tools=[TOOL])
call = reply["tool_calls"][0]
assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}, reply
said += [reply, {"role": "tool", "tool_call_id": call["id"], "content": "3"}]
print(chat(said, tools=[TOOL])["content"])
"""
MESSAGES = """
HEAD = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}

def say(messages):
    body = {"model": "m", "max_tokens": 9, "messages": messages, "tools": [TOOL]}
    status, answer = post("/v1/messages", body, headers=HEAD)
    return json.loads(answer)

said = [user("1+2")]
reply = say(said)
(block,) = reply["content"]
assert (reply["stop_reason"], block["type"], block["input"]) == ("tool_use", "tool_use", {"a": 1})
said.append({"role": "assistant", "content": reply["content"]})
result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "3"}]}
said.append({"role": "user", "content": [result]})
assert say(said)["stop_reason"] == "end_turn"
"""
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize("text", [TOOLS, MESSAGES])
async def test_tools_are_called_in_both_dialects_and_results_are_not_trained_on(text):
    played, _ = await play_agent(agent(text), lambda prompt, seed: "3" if "3\n" in prompt else CALL)

    (episode,) = played.episodes
    assert (episode.ending, episode.turn, episode.signals["exit_code"]) == ("stop", 2, 0)
    assert written(episode.token_ids) == f"{CALL}.3\n3."
    assert episode.loss_mask == (*(1,) * (len(CALL) + 1), 0, 0, 1, 1)


STREAMS = """
body = {"model": "m", "messages": [user("q")], "stream": True, "stream_options": {"include_usage": True}}
status, events = post("/v1/chat/completions", body)
data = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
assert data.pop() == "[DONE]"
chunks = [json.loads(one) for one in data]
assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == "hello"
assert chunks[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}, chunks[-1]
body = {"model": "m", "max_tokens": 9, "messages": [user("q"), {"role": "assistant", "content": "hello"},
        user("more")], "stream": True}
status, events = post("/v1/messages", body)
named = [line[7:] for line in events.splitlines() if line.startswith("event: ")]
assert named[0] == "message_start" and named[-1] == "message_stop", named
"""


async def test_answers_are_streamed_and_one_conversation_may_change_its_dialect():
    played, _ = await play_agent(agent(STREAMS), lambda prompt, seed: "hello")

    (episode,) = played.episodes
    assert (episode.turn, episode.forks, episode.signals["exit_code"]) == (2, 0, 0)
    assert written(episode.token_ids) == "hello.more\nhello."


REFUSED = """
for path, body, wanted in (
    ("/v1/chat/completions", {"messages": [user("q")], "n": 2}, "n must be 1"),
    ("/v1/chat/completions", {"messages": [user("q")], "logprobs": True}, "logprobs"),
    ("/v1/chat/completions", {"messages": [user("q")], "stop": ["x"]}, "stop"),
    ("/v1/chat/completions", {"messages": []}, "messages is empty"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
    ("/v1/chat/completions", {"messages": [user("q"), {"role": "assistant", "content": "b"}]}, "begun reply"),
    ("/v1/chat/completions", b"{", "no JSON"),
    ("/v1/messages", {"messages": [user("q")], "stop_sequences": ["x"]}, "stop_sequences"),
    ("/v1/messages", {"messages": [user("q")], "thinking": {"type": "enabled"}}, "thinking"),
):
    status, answer = post(path, body)
    error = json.loads(answer)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error"), answer
    assert wanted in error["message"], answer
assert post("/v1/responses", {})[0] == 404
chat([user("q")])
"""


async def test_what_is_not_done_is_refused_by_name_and_costs_no_turn():
    played, engine = await play_agent(agent(REFUSED), lambda prompt, seed: "r")

    (episode,) = played.episodes
    assert (episode.turn, episode.signals["exit_code"], len(engine.calls)) == (1, 0, 1)


SIDE = """
said = [user("task")]
said += [chat(said), user("on")]
chat([user("title?")])
chat(said)
"""


async def test_a_broken_prefix_begins_another_row_and_both_are_trained_on():
    played, _ = await play_agent(
        agent(SIDE), lambda prompt, seed: "title" if "title" in prompt else "reply"
    )

    (episode,) = played.episodes
    assert (episode.turn, episode.forks) == (3, 2)
    first, second = episode.rows
    assert written(first.prompt_ids) + written(first.token_ids) == "task\nreply.on\nreply."
    assert first.loss_mask == (1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1)
    assert written(second.prompt_ids) + written(second.token_ids) == "title?\ntitle."
    assert second.loss_mask == (1,) * 6
    assert (episode.signals["forks"], episode.signals["rows"]) == (2, 2)


COMPACTS = """
said = [user("task")]
said += [chat(said), user("on"), ]
said += [chat(said)]
short = [user("so far: " + said[-1]["content"]), ]
short += [chat(short), user("go")]
chat(short)
"""


async def test_an_agent_that_compacts_its_history_is_trained_before_and_after_it():
    played, _ = await play_agent(agent(COMPACTS), lambda prompt, seed: "abc"[prompt.count(":")])

    (episode,) = played.episodes
    assert [written(one.prompt_ids) + written(one.token_ids) for one in episode.rows] == [
        "task\na.on\na.",
        "so far: a\nb.go\nb.",
    ]


ENDLESS = "for number in range(99): chat([user(str(number))])"


async def test_an_agent_that_opens_conversations_without_end_has_no_more_rows_than_turns():
    played, engine = await play_agent(agent(ENDLESS, "pass"), lambda prompt, seed: "r")

    (episode,) = played.episodes
    assert (played.failure, episode.turn, episode.ending) == (None, 32, "turn-limit")
    assert len(episode.rows) == len(engine.calls) == 32
    assert episode.turn_rewards[-1] == 1.0


LEAVES = "open('answer', 'w').write(chat([user('q')])['content'])"
JUDGES = """
import json
row = json.load(open("/tests/row.json"))
raise SystemExit(0 if open("answer").read() == row["answer"] else 1)
"""


async def test_a_verifier_judges_what_the_agent_left():
    good, _ = await play_agent(agent(LEAVES, JUDGES), lambda prompt, seed: "a")
    bad, _ = await play_agent(agent(LEAVES, JUDGES), lambda prompt, seed: "b")

    assert [one.episodes[0].turn_rewards for one in (good, bad)] == [(1.0,), (0.0,)]


WRITES = """
import os
os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("0.25")
"""


async def test_a_number_in_the_reward_file_is_the_reward():
    played, _ = await play_agent(agent(LEAVES, WRITES), lambda prompt, seed: "a")
    assert played.episodes[0].turn_rewards == (0.25,)


@pytest.mark.parametrize(
    "verifier",
    [
        "raise SystemExit(2)",
        "import os; os.kill(os.getpid(), 9)",
        'open("/logs/verifier/reward.txt", "w").write("nan")',
    ],
)
async def test_a_verifier_that_crashes_never_scores(verifier):
    played, _ = await play_agent(agent(LEAVES, verifier), lambda prompt, seed: "a")

    assert played.episodes == ()
    assert played.failure.kind == "infrastructure"
    assert "verifier" in played.failure.message


async def test_the_seed_of_a_row_is_the_same_in_every_episode():
    text = "chat([user(os.environ['ROLLOUT_SEED'])])"
    first, _ = await play_agent(agent(text), lambda prompt, seed: "r", samples=2)
    again, _ = await play_agent(agent(text), lambda prompt, seed: "r")

    prompts = {one.prompt_ids for one in (*first.episodes, *again.episodes)}
    assert len(prompts) == 1


async def test_in_exact_a_group_played_again_is_the_same_token_for_token():
    def say(prompt, seed):
        return f" {seed % 97} " * (1 + seed % 3)

    first, _ = await play_agent(agent(TALK), say, samples=4)
    again, _ = await play_agent(agent(TALK), say, samples=4)

    assert len(first.episodes) == 4
    assert first.episodes == again.episodes


async def test_a_lost_sandbox_is_made_again_and_nothing_is_sampled_twice(monkeypatch):
    lost = []
    run = AgentSandbox.run

    async def losing(self, command):
        if "/tests/test.py" in command.argv and not lost:
            lost.append(self)
            raise InfrastructureError("the sandbox has ended")
        return await run(self, command)

    monkeypatch.setattr(AgentSandbox, "run", losing)
    text = "said = [user('q')]\nsaid += [chat(said), user('on')]\nchat(said)"
    played, engine = await play_agent(agent(text, "pass"), lambda prompt, seed: "r")

    (episode,) = played.episodes
    assert (len(lost), len(engine.calls), episode.turn_rewards) == (1, 2, (None, 1.0))
    assert written(episode.token_ids) == "r.on\nr."
