"""LiteLLM's SDK as its users write it: ``python litellm_client.py URL KEY``, before a gateway with simulated engines."""

import json
import sys
import time
from typing import Any

import litellm
from pydantic import BaseModel

URL, KEY = sys.argv[1:3]
AT: dict[str, Any] = {"api_base": URL, "api_key": KEY}
FILES: dict[str, Any] = {"custom_llm_provider": "openai", **AT}
ASKED = [{"role": "user", "content": "Hi"}]
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


class Sum(BaseModel):
    """What an answer is to be."""

    answer: int


def talk() -> None:
    """An answer whole and streamed, with its usage."""
    whole: Any = litellm.completion("openai/text", messages=ASKED, **AT)
    assert whole.choices[0].message.content == "w w w w "
    assert whole.usage.total_tokens == 11
    options = {"include_usage": True}
    stream = litellm.completion(
        "openai/text", messages=ASKED, stream=True, stream_options=options, **AT
    )
    chunks: list[Any] = list(stream)
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "w w w w "
    assert [one.usage.total_tokens for one in chunks if getattr(one, "usage", None)] == [11]
    text: Any = litellm.text_completion(model="text-completion-openai/text", prompt="Hi", **AT)
    assert text.choices[0].text == "w w w w "


def call() -> None:
    """A tool is called."""
    said: Any = litellm.completion("openai/text", messages=ASKED, tools=[TOOL], **AT)
    [found] = said.choices[0].message.tool_calls
    assert json.loads(found.function.arguments) == {"a": 3, "b": 4}
    chunks = list(
        litellm.completion("openai/text", messages=ASKED, tools=[TOOL], stream=True, **AT)
    )
    built: Any = litellm.stream_chunk_builder(chunks)
    assert built.choices[0].message.tool_calls[0].function.arguments == found.function.arguments


def structure() -> None:
    """An answer of a schema."""
    said: Any = litellm.completion("openai/text", messages=ASKED, response_format=Sum, **AT)
    assert Sum.model_validate_json(said.choices[0].message.content) == Sum(answer=7)


def embed() -> None:
    """Vectors of several texts."""
    found = litellm.embedding("openai/vectors", input=["a", "b"], **AT)
    assert [[round(x, 5) for x in one["embedding"]] for one in found.data] == [[0.6, 0.8]] * 2


def batch() -> None:
    """A file goes up, a batch over it ends, and its answers come down."""
    body = {"model": "text", "messages": ASKED}
    lines = [
        {"custom_id": str(one), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for one in range(5)
    ]
    data = "".join(json.dumps(one) + "\n" for one in lines).encode()
    file: Any = litellm.create_file(file=("in.jsonl", data), purpose="batch", **FILES)
    begun: Any = litellm.create_batch(
        completion_window="24h", endpoint="/v1/chat/completions", input_file_id=file.id, **FILES
    )
    deadline = time.monotonic() + 120
    while (found := litellm.retrieve_batch(batch_id=begun.id, **FILES)).status != "completed":
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    answers: Any = litellm.file_content(file_id=found.output_file_id, **FILES)
    rows = [json.loads(line) for line in answers.content.decode().splitlines()]
    assert [one["custom_id"] for one in rows] == list("01234")


def fail() -> None:
    """What is wrong is LiteLLM's own errors of the same kinds."""
    for model, text, kind, more in (
        ("openai/text", "hang", litellm.Timeout, {"timeout": 1.0, "max_retries": 0}),
        ("openai/none", "Hi", litellm.NotFoundError, {}),
        ("openai/text", "status=500", litellm.BadGatewayError, {"max_retries": 1}),
    ):
        try:
            litellm.completion(model, messages=[{"role": "user", "content": text}], **more, **AT)
        except kind:
            continue
        raise AssertionError(kind)


for one in (talk, call, structure, embed, batch, fail):
    one()
    print(one.__name__)
