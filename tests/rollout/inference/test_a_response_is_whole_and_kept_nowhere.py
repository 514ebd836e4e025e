"""``/v1/responses``: OpenAI's client reads it, whole and streamed; what would need a store is refused by its name."""

import openai
import pytest
from gateway_kit import until

INPUT = "hello"


def client_of(served):
    return openai.AsyncOpenAI(base_url=served.url + "/v1", api_key=served.key, max_retries=0)


async def test_a_response_is_answered_and_counted(gateway):
    served = await gateway()
    answer = await client_of(served).responses.create(model="m", input=INPUT, max_output_tokens=9)
    assert answer.output_text == "w w w w "
    assert answer.usage.output_tokens == 4
    sent = served.engines["a"].seen[0]
    assert sent["store"] is False
    assert "stream_options" not in sent
    page = served.state.metrics.render().decode()
    assert 'rollout_gateway_tokens_total{kind="prompt",version="m"} 7.0' in page


async def test_a_stream_has_openais_events_and_ends_without_done(gateway):
    served = await gateway()
    stream = await client_of(served).responses.create(model="m", input=INPUT, stream=True)
    events = [event async for event in stream]
    assert (
        "".join(one.delta for one in events if one.type == "response.output_text.delta")
        == "w w w w "
    )
    assert events[-1].type == "response.completed"
    assert [one.sequence_number for one in events] == list(range(len(events)))
    page = served.state.metrics.render().decode()
    assert 'rollout_gateway_tokens_total{kind="completion",version="m"} 4.0' in page


async def test_a_lost_engine_is_an_error_event_with_the_next_number(gateway):
    served = await gateway()
    stream = await client_of(served).responses.create(model="m", input="die", stream=True)
    events = [event async for event in stream]
    assert (events[-1].type, events[-1].code) == ("error", "engine_lost")
    assert events[-1].sequence_number == len(events) - 1
    again = await client_of(served).responses.create(model="m", input=INPUT)
    assert again.output_text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"store": True}, "store"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": "f"}, "tools"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"session_id": "s"}, "session_id"),
    ],
)
async def test_what_rests_on_more_than_the_request_is_refused_by_name(gateway, fields, param):
    served = await gateway()
    body = {"model": "m", "input": INPUT, **fields}
    status, refused, _ = await served.post("/v1/responses", body)
    assert (status, refused["error"]["param"]) == (400, param)
    assert not served.engines["a"].seen


async def test_leaving_frees_the_engine(gateway):
    served = await gateway()
    stream = await client_of(served).responses.create(
        model="m", input="delay=0.05 tokens=9999", stream=True
    )
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: served.engines["a"].freed == 1, "the engine's end")
