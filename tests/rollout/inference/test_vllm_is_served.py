"""Behind the gateway stands vLLM's own server: its bytes, its tools' refusals, its structured output; leaving frees it; its spans hang on ours."""

from __future__ import annotations

import json
import time

import httpx
import openai
import psutil
import pytest
from serving_kit import serving
from span_collector import Collector, collecting

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("vllm"),
]

MESSAGES = [{"role": "user", "content": "Hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1]}},
    "required": ["a"],
    "additionalProperties": False,
}


def engine_metrics(pid: int) -> str:
    """What vLLM says of itself, over its own socket, which the gateway gives to nobody."""
    for one in psutil.Process(pid).children(recursive=True):
        words = one.cmdline()
        if "--uds" in words:
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=words[words.index("--uds") + 1])
            ) as client:
                return client.get("http://engine/metrics").text
    raise AssertionError("no server of vLLM")


def value_of(page: str, name: str) -> float:
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name + "{")
    )


def test_a_client_of_openais_meets_vllm_as_it_is(tmp_path):
    words = ("rollout://tiny-qwen2", "--engine", "vllm", "--tool-call-parser", "hermes")
    with (
        collecting() as collector,
        serving(tmp_path, *words, "--traces", collector.url, "--files", "kept") as served,
    ):
        client = openai.OpenAI(base_url=served.url, api_key=served.key, max_retries=0)
        ask = {"model": "tiny-qwen2", "messages": MESSAGES, "max_tokens": 5}

        whole = client.chat.completions.create(**ask, seed=1)
        assert whole.model == "tiny-qwen2"
        chunks = list(client.chat.completions.create(**ask, seed=1, stream=True))
        assert (
            "".join(one.choices[0].delta.content or "" for one in chunks)
            == whole.choices[0].message.content
        )
        assert not [one for one in chunks if one.usage]
        with_usage = list(
            client.chat.completions.create(
                **ask, stream=True, stream_options={"include_usage": True}
            )
        )
        assert with_usage[-1].usage.prompt_tokens == whole.usage.prompt_tokens

        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        said = client.chat.completions.create(**{**ask, "max_tokens": 60}, response_format=form)
        if said.choices[0].finish_reason == "stop":
            assert json.loads(said.choices[0].message.content) == {"a": 1}
        tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
        called = client.chat.completions.create(
            **{**ask, "max_tokens": 60},
            tools=[tool],
            tool_choice={"type": "function", "function": {"name": "f"}},
        )
        assert called.choices[0].message.tool_calls[0].function.name == "f"
        response = client.responses.create(model="tiny-qwen2", input="Hello", max_output_tokens=5)
        assert response.usage.output_tokens <= 5
        events = list(
            client.responses.create(
                model="tiny-qwen2", input="Hello", max_output_tokens=5, stream=True
            )
        )
        assert events[-1].type in {"response.completed", "response.incomplete"}

        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**{**ask, "max_tokens": 10**6})
        assert refused.value.param == "max_tokens"
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model="tiny-qwen2", input="a")
        assert refused.value.code == "unsupported_route"

        _left_while_streaming(client, served.process.pid)
        _traced_to_the_engine(client, collector)
        _answered_as_a_batch(client)


def _left_while_streaming(client: openai.OpenAI, pid: int) -> None:
    """A stream that is left is cut short. On a busy machine the engine can be done before it hears; not five times over."""
    assert any(_tokens_of_a_left_stream(client, pid) < 3000 for _ in range(5))


def _tokens_of_a_left_stream(client: openai.OpenAI, pid: int) -> float:
    before = value_of(engine_metrics(pid), "vllm:generation_tokens_total")
    with client.chat.completions.create(
        model="tiny-qwen2",
        messages=MESSAGES,
        max_tokens=3500,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        next(stream)
    deadline = time.monotonic() + 60
    while value_of(page := engine_metrics(pid), "vllm:num_requests_running"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value_of(page, "vllm:generation_tokens_total") - before


def _traced_to_the_engine(client: openai.OpenAI, collector: Collector) -> None:
    """A client's trace goes through the gateway's span to vLLM's own."""
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    client.chat.completions.create(
        model="tiny-qwen2",
        messages=MESSAGES,
        max_tokens=5,
        extra_headers={"traceparent": f"00-{trace}-{span}-01"},
    )
    collector.wait(lambda it: len([one for one in it.spans if one.trace_id == trace]) == 2)
    [ours, engines] = sorted(
        (one for one in collector.spans if one.trace_id == trace), key=lambda one: one.begun
    )
    assert (ours.name, ours.parent_id, ours.service) == ("chat tiny-qwen2", span, "rollout-gateway")
    assert (engines.name, engines.parent_id) == ("llm_request", ours.span_id)
    assert engines.service == "rollout-engine"
    told = "gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"
    assert engines.attributes[told[0]] == ours.attributes[told[1]]
    assert ours.attributes["gen_ai.response.id"].startswith("chatcmpl-")
    refused = [one for one in collector.spans if one.attributes.get("error.type") == "499"]
    assert {one.status for one in refused} == {"UNSET"}


def _answered_as_a_batch(client: openai.OpenAI) -> None:
    """Every line is answered, beside a stream that is open all the while."""
    body = {"model": "tiny-qwen2", "messages": MESSAGES, "max_tokens": 5, "seed": 1}
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(40)
    ]
    too_long = {**lines[0], "custom_id": "long", "body": {**body, "max_tokens": 10**6}}
    data = "".join(json.dumps(one) + "\n" for one in (*lines, too_long)).encode()
    whole = client.chat.completions.create(**body).choices[0].message.content
    with client.chat.completions.create(
        **{**body, "max_tokens": 1500}, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(stream)
        file = client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        for _ in stream:
            pass
    deadline = time.monotonic() + 120
    while (batch := client.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    found = [
        json.loads(one) for one in client.files.content(batch.output_file_id).text.splitlines()
    ]
    assert {one["custom_id"] for one in found} == {str(i) for i in range(40)}
    said = {one["response"]["body"]["choices"][0]["message"]["content"] for one in found}
    assert whole in said
    [refused] = client.files.content(batch.error_file_id).text.splitlines()
    assert json.loads(refused)["response"]["status_code"] == 400
