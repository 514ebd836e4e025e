"""langchain-openai as its users write it: ``python langchain_client.py URL KEY TOKENIZER``, before a gateway with simulated engines."""

import sys
from typing import Any

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

URL, KEY, TOKENIZER = sys.argv[1:4]
AT: dict[str, Any] = {"base_url": URL, "api_key": SecretStr(KEY)}


class Sum(BaseModel):
    """What an answer is to be."""

    answer: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def talk() -> None:
    """An answer whole, streamed, and several at a time."""
    model = ChatOpenAI(model="text", stream_usage=True, **AT)
    whole = model.invoke("Hi")
    assert whole.content == "w w w w "
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["total_tokens"] == 11
    chunks = list(model.stream("Hi"))
    assert "".join(str(one.content) for one in chunks) == "w w w w "
    assert [one.usage_metadata["output_tokens"] for one in chunks if one.usage_metadata] == [4]
    assert [one.content for one in model.batch(["a", "b", "c"])] == ["w w w w "] * 3
    assert OpenAI(model="text", **AT).invoke("Hi") == "w w w w "


def call() -> None:
    """A tool is called, whole and streamed, and its result taken."""
    model = ChatOpenAI(model="text", **AT).bind_tools([add])
    asked = HumanMessage("3 + 4?")
    said = model.invoke([asked])
    assert [(one["name"], one["args"]) for one in said.tool_calls] == [("add", {"a": 3, "b": 4})]
    merged: Any = None
    for chunk in model.stream([asked]):
        merged = chunk if merged is None else merged + chunk
    assert merged.tool_calls == said.tool_calls
    result = ToolMessage(
        add.invoke(said.tool_calls[0]["args"]), tool_call_id=said.tool_calls[0]["id"]
    )
    assert model.invoke([asked, said, result]).content == "w w w w "


def structure() -> None:
    """An answer of a schema."""
    model = ChatOpenAI(model="text", **AT)
    assert model.with_structured_output(Sum, method="json_schema").invoke("3 + 4?") == Sum(answer=7)


def embed() -> None:
    """Vectors of texts, and of the tokens that its own tokenizer makes of them."""
    for more in ({"check_embedding_ctx_length": False}, {"tiktoken_enabled": False}):
        vectors = OpenAIEmbeddings(model="vectors", tiktoken_model_name=TOKENIZER, **more, **AT)
        found = vectors.embed_documents(["3+4=", "12"])
        assert [[round(x, 5) for x in one] for one in found] == [[0.6, 0.8]] * 2


def fail() -> None:
    """What is wrong is OpenAI's errors."""
    for model, text, kind, more in (
        ("text", "hang", openai.APITimeoutError, {"timeout": 1.0, "max_retries": 0}),
        ("none", "Hi", openai.NotFoundError, {}),
        ("text", "status=500", openai.InternalServerError, {"max_retries": 1}),
    ):
        try:
            ChatOpenAI(model=model, **more, **AT).invoke(text)
        except kind:
            continue
        raise AssertionError(kind)


for one in (talk, call, structure, embed, fail):
    one()
    print(one.__name__)
