"""``rollout infer serve`` and OpenAI's own client, unchanged: chat, completions, streams, logprobs, refusals, curl, Ctrl-C."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import openai
import pytest
from serving_kit import serving

pytestmark = pytest.mark.process

MESSAGES = [{"role": "user", "content": "3+4="}]
MODEL = "rollout://tiny-adder"


@pytest.fixture(scope="module")
def served():
    with (
        tempfile.TemporaryDirectory() as home,
        serving(Path(home), f"adder={MODEL}", f"twin={MODEL}", "--files", "kept") as found,
    ):
        yield found


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=served.url, api_key=served.key)


def test_several_models_are_listed(client):
    assert [one.id for one in client.models.list()] == ["adder", "twin"]


def test_a_chat_is_answered_with_its_usage_and_id(client):
    answer = client.chat.completions.create(
        model="adder", messages=MESSAGES, max_tokens=6, temperature=0
    )
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == "adder"
    assert answer._request_id.startswith("req_")


def test_a_batch_is_answered_by_the_engine_that_is_online(client):
    bodies = [
        {
            "model": "adder",
            "messages": [{"role": "user", "content": f"{i}+{i}="}],
            "max_tokens": 4,
            "temperature": 0,
        }
        for i in range(10)
    ]
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": one}
        for i, one in enumerate(bodies)
    ]
    data = "".join(json.dumps(one) + "\n" for one in lines).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 120
    while (batch := client.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    found = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    answers = {
        int(one["custom_id"]): one["response"]["body"]["choices"][0]["message"] for one in found
    }
    online = [client.chat.completions.create(**one).choices[0].message for one in bodies]
    assert [answers[i]["content"] for i in range(10)] == [one.content for one in online]


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream_says_the_same_as_the_whole_answer(client, usage):
    asked = {
        "model": "adder",
        "messages": MESSAGES,
        "max_tokens": 6,
        "temperature": 1.0,
        "seed": 5,
        "n": 2,
    }
    whole = client.chat.completions.create(**asked)
    options = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(client.chat.completions.create(**asked, stream=True, **options))
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert [chunk.usage for chunk in chunks if chunk.usage] == ([whole.usage] if usage else [])
    assert usage or all(chunk.choices for chunk in chunks)


def test_a_seed_gives_the_same_answer_beside_others(client):
    def ask(seed):
        return (
            client.chat.completions.create(
                model="twin", messages=MESSAGES, max_tokens=12, seed=seed
            )
            .choices[0]
            .message.content
        )

    alone, together = [ask(seed) for seed in range(4)], {}
    threads = [
        threading.Thread(target=lambda seed=seed: together.update({seed: ask(seed)}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [together[seed] for seed in range(4)] == alone


def test_logprobs_are_those_of_the_tokens(client):
    answer = client.chat.completions.create(
        model="adder", messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(one.logprob for one in token.top_logprobs)


def test_a_stop_text_ends_it_and_is_left_out(client):
    first = (
        client.completions.create(model="adder", prompt="3+4=", max_tokens=8, temperature=0)
        .choices[0]
        .text
    )
    stopped = client.completions.create(
        model="adder", prompt="3+4=", max_tokens=8, temperature=0, stop=first[1]
    )
    assert stopped.choices[0].text == first[: first.index(first[1])]
    assert stopped.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"temperature": 3.0}, "temperature"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="adder", messages=MESSAGES, **fields)
    assert refused.value.param == param


def test_too_long_a_prompt_has_the_code_that_clients_look_for(client):
    messages = [{"role": "user", "content": "1+" * 5000}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="adder", messages=messages)
    assert refused.value.code == "context_length_exceeded"


def test_a_wrong_key_and_a_wrong_model_have_openais_errors(served, client):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=served.url, api_key=served.key[:-2] + "xx").models.list()
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert refused.value.code == "model_not_found"


def test_curl_streams(served):
    body = '{"model": "adder", "stream": true, "max_tokens": 3, "messages": [{"role": "user", "content": "3+4="}]}'
    said = subprocess.run(
        [
            "curl",
            "-sN",
            f"{served.url}/chat/completions",
            "-H",
            f"Authorization: Bearer {served.key}",
            "-d",
            body,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.endswith("data: [DONE]\n\n")


def test_a_killed_engine_is_started_again_and_the_next_request_waits_for_it(served, client):
    import psutil

    engine = next(
        one
        for one in psutil.Process(served.process.pid).children(recursive=True)
        if "rollout.entrypoints.serving.embedded" in one.cmdline()
    )
    engine.kill()
    for model in ("adder", "twin"):
        answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=2)
        assert answer.choices[0].finish_reason in {"stop", "length"}


def test_no_key_is_in_any_log(served):
    logs = list((served.home / "gateway" / "logs").iterdir())
    assert {one.name for one in logs} >= {"gateway.log", "adder-0.log", "twin-0.log"}
    secret = served.key.split("-", 3)[3]
    assert not [one for one in logs if secret in one.read_text()]


def test_ctrl_c_drains_and_its_key_is_gone(served, client):
    stream = client.chat.completions.create(
        model="adder", messages=MESSAGES, max_tokens=20, stream=True
    )
    first = next(stream)
    assert served.interrupt() == 0
    assert first.choices
    assert [chunk for chunk in stream if chunk.choices][-1].choices[0].finish_reason
    assert served.key.split("-")[2] not in (served.home / "gateway" / "keys.json").read_text()
