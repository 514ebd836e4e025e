"""A name is resolved once, at admission; the answer says to what; and nothing but the API is reachable."""

import asyncio
import json

import aiohttp
import pytest
from gateway_kit import build_table, chat, until

from rollout.inference.gateway.table import write_table

CHAT = "/v1/chat/completions"


async def test_an_answer_names_version_and_digest_and_its_request(gateway):
    served = await gateway(aliases={"best": "run@7"}, **{"run@7": ("a",)})
    status, answer, headers = await served.post(
        CHAT, chat("hi", "best"), headers={**served.headers(), "X-Request-Id": "mine-1"}
    )
    assert (status, answer["model"]) == (200, "run@7")
    assert headers["X-Rollout-Model-Version"] == "run@7"
    assert headers["X-Rollout-Weights-Digest"] == "blake3:run@7"
    assert headers["x-request-id"] == "mine-1"
    assert served.engines["a"].headers[0]["X-Request-Id"] != "mine-1"


async def test_a_clients_id_that_could_split_a_log_is_not_repeated(gateway):
    served = await gateway()
    headers = {**served.headers(), "X-Request-Id": "a b;" + "x" * 200}
    _, _, answered = await served.post(CHAT, chat("hi"), headers=headers)
    assert answered["x-request-id"].startswith("req_")


async def test_a_stream_goes_on_with_the_version_it_began_with(gateway):
    served = await gateway(aliases={"live": "run@1"}, **{"run@1": ("a",), "run@2": ("b",)})
    running = asyncio.create_task(served.stream(chat("tokens=30 delay=0.05", "live")))
    await until(lambda: served.engines["a"].open, "the stream")
    write_table(
        served.table, build_table(served.folder, {"run@2": ("b",)}, aliases={"live": "run@2"})
    )
    await until(lambda: served.state.table.find("run@1") is None, "the new table")
    _, after, _ = await served.post(CHAT, chat("hi", "live"))
    assert after["model"] == "run@2"
    status, gone, _ = await served.post(CHAT, chat("hi", "run@1"))
    assert (status, gone["error"]["code"]) == (404, "model_not_found")
    assert "run@2" in gone["error"]["message"]
    events = (await running).split(b"\n\n")
    assert events[-2] == b"data: [DONE]"
    assert {json.loads(one[6:])["model"] for one in events[:-2]} == {"run@1"}
    await until(lambda: len(served.state.pools) == 1, "the old version's end")


async def test_models_are_listed_and_found_by_encoded_names(gateway):
    served = await gateway(aliases={"run@live": "run@7"}, **{"run@7": ("a",)})
    async with aiohttp.ClientSession(headers=served.headers()) as session:
        async with session.get(served.url + "/v1/models") as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["run@7", "run@live"]
        async with session.get(served.url + "/v1/models/run%40live") as answer:
            assert (await answer.json())["root"] == "run@7"


async def test_a_scoped_key_sees_and_asks_its_own_models_only(gateway):
    served = await gateway(aliases={"other": "m"})
    key = served.new_key(models=("other",))
    await until(lambda: served.state.ring.holds(key.split("-")[2], 0.0), "the key")
    status, refused, _ = await served.post(CHAT, chat("hi", "m"), headers=served.headers(key))
    assert (status, refused["error"]["code"]) == (404, "model_not_found")
    status, _, _ = await served.post(CHAT, chat("hi", "other"), headers=served.headers(key))
    assert status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/nothing",
        "/pause",
        "/collective_rpc",
        "/v1/load_lora_adapter",
        "/invocations",
        "/health",
        "/v1/chat/completions/../../pause",
    ],
)
async def test_no_other_route_of_an_engine_is_reachable(gateway, path):
    served = await gateway()
    status, refused, _ = await served.post(path, {})
    assert (status, refused["error"]["code"]) == (404, "unknown_url")
    assert not served.engines["a"].seen


async def test_two_keys_prompts_are_kept_apart_in_an_engines_cache(gateway):
    served = await gateway()
    other = served.new_key()
    await until(lambda: served.state.ring.holds(other.split("-")[2], 0.0), "the key")
    for key in (served.key, served.key, other):
        await served.post(CHAT, chat("hi"), headers=served.headers(key))
    salts = [one["cache_salt"] for one in served.engines["a"].seen]
    assert salts[0] == salts[1] != salts[2]


async def test_health_readiness_and_metrics_need_no_key(gateway):
    served = await gateway()
    await served.post(CHAT, chat("hi"))
    async with aiohttp.ClientSession() as session:
        for path in ("/healthz", "/readyz"):
            async with session.get(served.url + path) as answer:
                assert answer.status == 200
        async with session.get(served.url + "/metrics") as answer:
            page = await answer.text()
    assert f'rollout_gateway_requests_total{{code="200",route="{CHAT}",version="m"}} 1.0' in page
    assert 'rollout_gateway_tokens_total{kind="completion",version="m"} 4.0' in page
    assert served.key not in page
