"""``/v1/files`` and ``/v1/batches`` for OpenAI's own client: every line answered once, behind what is online, across restarts."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import openai
import pytest
from batch_kit import CHAT, begin, client_of, ended, line, lines_of, pack
from gateway_kit import chat, until
from gateway_processes import processes, start_python, wait_ready

from rollout.inference.gateway.batches import desk, reading
from rollout.inference.gateway.batches.reading import mend


@pytest.fixture
async def serve(gateway, tmp_path):
    """A gateway that keeps files: ``await serve(...)``, always in the same folder and with the same keys."""

    async def start(slots: int = 4, **settings):
        kept = {"files": str(tmp_path / "files"), "keys": str(tmp_path / "keys"), **settings}
        return await gateway(slots=slots, settings=kept)

    return start


async def test_openais_client_gets_every_line_answered(serve):
    served = await serve()
    client = client_of(served)
    batch = await begin(client, [line(f"r{i}", f"tokens={i + 1}") for i in range(20)])
    assert (batch.status, batch.object, batch.endpoint) == ("validating", "batch", CHAT)
    batch = await ended(client, batch.id)
    assert (batch.status, batch.model, batch.error_file_id) == ("completed", "m", None)
    assert batch.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    found = await lines_of(client, batch.output_file_id)
    assert set(found) == {f"r{i}" for i in range(20)}
    for i in range(20):
        response = found[f"r{i}"]["response"]
        assert response["status_code"] == 200
        assert response["body"]["usage"]["completion_tokens"] == i + 1
        assert response["request_id"].startswith("req_")
        assert found[f"r{i}"]["error"] is None


async def test_a_batch_of_texts_is_answered_on_their_route(serve):
    client = client_of(await serve())
    url = "/v1/completions"
    text = {**line("a", ""), "url": url, "body": {"model": "m", "prompt": "tokens=3"}}
    batch = await ended(client, (await begin(client, [text], url)).id)
    [answer] = (await lines_of(client, batch.output_file_id)).values()
    assert answer["response"]["body"]["object"] == "text_completion"
    batch = await ended(client, (await begin(client, [text, line("b", "Hi")], url)).id)
    assert [(one.code, one.line) for one in batch.errors.data] == [("mismatched_url", 2)]


async def test_files_and_batches_are_listed_shown_and_deleted(serve):
    served = await serve()
    client = client_of(served)
    data = pack([line("a", "Hi")])
    file = await client.files.create(file=("prompts.jsonl", data), purpose="batch")
    assert (file.bytes, file.filename, file.status) == (len(data), "prompts.jsonl", "processed")
    assert (await client.files.content(file.id)).content == data
    batches = [
        await client.batches.create(
            input_file_id=file.id,
            endpoint=CHAT,
            completion_window="24h",
            metadata={"n": str(i)},
        )
        for i in range(3)
    ]
    for one in batches:
        await ended(client, one.id)
    listed = [one async for one in client.batches.list(limit=2)]
    assert {one.id for one in listed} == {one.id for one in batches}
    assert {one.metadata["n"] for one in listed} == {"0", "1", "2"}
    outputs = [one async for one in client.files.list(purpose="batch_output")]
    assert {one.id for one in outputs} == {one.output_file_id for one in listed}
    assert (await client.files.retrieve(file.id)).id == file.id
    assert (await client.files.delete(file.id)).deleted
    for gone in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            await gone(file.id)


async def test_a_file_may_be_larger_than_a_requests_body(serve):
    client = client_of(await serve(body_bytes_max=100_000))
    lines = [line(f"r{i}", "- " * 45_000) for i in range(30)]
    batch = await ended(client, (await begin(client, lines)).id)
    assert batch.request_counts.completed == 30


async def test_a_batch_that_is_cancelled_before_its_turn_asks_nothing(serve):
    served = await serve()
    client = client_of(served)
    first = await begin(client, [line("a", "hang")])
    second = await begin(client, [line(f"r{i}", "Hi") for i in range(3)])
    await client.batches.cancel(second.id)
    await client.batches.cancel(first.id)
    second = await ended(client, second.id)
    assert second.request_counts.model_dump() == {"total": 3, "completed": 0, "failed": 3}
    assert len(await lines_of(client, second.error_file_id)) == 3
    assert len(served.engines["a"].seen) <= 1


async def test_a_line_that_cannot_be_answered_is_in_the_error_file_and_the_others_are_answered(
    serve,
):
    served = await serve()
    client = client_of(served)
    lines = [
        line("good", "Hi"),
        line("unknown", "Hi", body={"priority": 1}),
        line("stream", "Hi", body={"stream": True}),
        line("refused", "status=400"),
        line("broken", "status=500"),
        line("junk", "Hi", body={"messages": "Hi"}),
    ]
    batch = await ended(client, (await begin(client, lines)).id)
    assert batch.status == "completed"
    assert batch.request_counts.model_dump() == {"total": 6, "completed": 1, "failed": 5}
    assert set(await lines_of(client, batch.output_file_id)) == {"good"}
    errors = await lines_of(client, batch.error_file_id)
    told = {
        name: (one["response"]["status_code"], one["response"]["body"]["error"]["code"])
        for name, one in errors.items()
    }
    assert told == {
        "unknown": (400, "unknown_parameter"),
        "stream": (400, "unsupported_parameter"),
        "refused": (400, None),
        "broken": (502, "engine_failed"),
        "junk": (400, "invalid_type"),
    }
    use = served.state.budgets.uses.get(served.key.split("-")[2])
    assert use is None or use.in_flight == 0  # None: nothing of it is open, and it was forgotten


@pytest.mark.parametrize(
    ("data", "code", "number"),
    [
        (b"\n \n", "empty_file", None),
        (pack([line("a", "Hi"), b"{"]), "invalid_json_line", 2),
        (pack([line("a", "Hi"), b"\xff\xfe"]), "invalid_json_line", 2),
        (pack([b"[" * 5000]), "invalid_json_line", 1),
        (pack([{**line("a", "Hi"), "more": 1}]), "invalid_json_line", 1),
        (pack([line("a", "Hi"), line("b", "Hi"), line("a", "Ho")]), "duplicate_custom_id", 3),
        (pack([line(7, "Hi")]), "invalid_custom_id", 1),
        (pack([line("", "Hi")]), "invalid_custom_id", 1),
        (pack([line("x" * 600, "Hi")]), "invalid_custom_id", 1),
        (pack([line("a", "Hi", method="GET")]), "invalid_method", 1),
        (pack([line("a", "Hi", url="/v1/embeddings")]), "mismatched_url", 1),
        (pack([line("a", "Hi", body={"model": None})]), "invalid_body", 1),
        (
            pack([line("a", "Hi"), line("b", "Hi", body={"model": "other"})]),
            "mismatched_model",
            2,
        ),
        (pack([line("a", "Hi", body={"model": "nothing"})]), "model_not_found", None),
        (pack([line("a", "x" * 20_000)]), "line_too_long", 1),
    ],
)
async def test_a_file_that_is_no_batch_fails_whole_and_says_where(serve, data, code, number):
    served = await serve(body_bytes_max=8000)
    client = client_of(served)
    batch = await ended(client, (await begin(client, data)).id)
    assert batch.status == "failed"
    [error] = batch.errors.data
    assert (error.code, error.line) == (code, number)
    assert not served.engines["a"].seen


@pytest.mark.parametrize("data", [pack([line(str(i), "Hi") for i in range(5)]), b"\n" * 9])
async def test_a_file_has_so_many_lines_blank_ones_too(serve, monkeypatch, data):
    monkeypatch.setattr(reading, "LINES_MAX", 4)
    client = client_of(await serve())
    batch = await ended(client, (await begin(client, data)).id)
    assert [one.code for one in batch.errors.data] == ["too_many_lines"]


async def test_a_byte_order_mark_blank_lines_and_no_last_end_are_no_errors(serve):
    client = client_of(await serve())
    data = b"\xef\xbb\xbf" + pack([line("a", "Hi"), b"", line("b", "Hi")]).replace(b"\n", b"\r\n")
    batch = await ended(client, (await begin(client, data.rstrip())).id)
    assert batch.request_counts.completed == 2


async def test_a_batch_leaves_places_for_who_is_online(serve):
    served = await serve(slots=8)
    client = client_of(served)
    await begin(client, [line(f"r{i}", "hang") for i in range(40)])
    engine = served.engines["a"]
    await until(lambda: engine.open == 6, "the batch")  # of 8 places, a quarter is kept
    for _ in range(5):
        asked = [served.post(CHAT, chat("online")) for _ in range(4)]
        assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}
    assert (engine.open, engine.most <= 8) == (6, True)


async def test_a_batch_has_a_quarter_of_the_places_while_others_ask(serve):
    served = await serve(slots=8)
    client = client_of(served)
    online = asyncio.create_task(served.post(CHAT, chat("hang")))
    engine = served.engines["a"]
    await until(lambda: engine.open == 1, "who is online")
    batch = await begin(client, [line(f"r{i}", "tokens=2 delay=0.01") for i in range(30)])
    assert (await ended(client, batch.id)).request_counts.completed == 30
    assert engine.most == 3
    online.cancel()


async def test_who_is_online_goes_before_a_batch_that_waits(serve):
    served = await serve(slots=2)
    client = client_of(served)
    batch = await begin(client, [line(f"r{i}", "tokens=5 delay=0.01") for i in range(30)])
    await until(lambda: served.engines["a"].open, "the batch")
    online = [served.post(CHAT, chat(f"online tokens=5 delay=0.01 {i}")) for i in range(12)]
    assert {status for status, _, _ in await asyncio.gather(*online)} == {200}
    seen = json.dumps(served.engines["a"].seen)
    answered = await client.batches.retrieve(batch.id)
    assert seen.count("online") == 12
    assert answered.status == "in_progress"
    assert (await ended(client, batch.id)).request_counts.completed == 30


async def test_an_engine_with_one_place_has_none_for_a_batch(serve):
    client = client_of(await serve(slots=1))
    batch = await ended(client, (await begin(client, [line("a", "Hi")])).id)
    assert batch.errors.data[0].code == "no_room"


async def test_a_cancelled_batch_says_of_each_line_what_became_of_it(serve):
    served = await serve(slots=2)
    client = client_of(served)
    batch = await begin(client, [line(f"r{i}", "tokens=5 delay=0.01") for i in range(200)])
    await until(lambda: len(served.engines["a"].seen) > 3, "some requests")
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    batch = await ended(client, batch.id)
    assert batch.status == "cancelled"
    good = await lines_of(client, batch.output_file_id)
    left = await lines_of(client, batch.error_file_id)
    assert set(good) | set(left) == {f"r{i}" for i in range(200)}
    assert not set(good) & set(left)
    assert {one["error"]["code"] for one in left.values()} == {"batch_cancelled"}
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(good), len(left))
    assert not served.engines["a"].open
    with pytest.raises(openai.BadRequestError):
        await client.batches.cancel(batch.id)


async def test_a_batch_that_takes_longer_than_it_may_expires(serve, monkeypatch):
    monkeypatch.setattr(desk, "WINDOW_SECONDS", 1)
    served = await serve()
    client = client_of(served)
    batch = await begin(client, [line("quick", "Hi"), line("slow", "hang")])
    batch = await ended(client, batch.id)
    assert batch.status == "expired"
    assert set(await lines_of(client, batch.output_file_id)) == {"quick"}
    left = await lines_of(client, batch.error_file_id)
    assert left["slow"]["error"]["code"] == "batch_expired"


async def test_a_batch_goes_on_where_a_server_ended(serve):
    first = await serve()
    client = client_of(first)
    batch = await begin(client, [line(f"r{i}", "tokens=3 delay=0.01") for i in range(60)])
    await until(lambda: len(first.engines["a"].seen) > 20, "some requests")
    await first.end()
    asked = len(first.engines["a"].seen)
    second = await serve()
    client = client_of(second, first.key)
    batch = await ended(client, batch.id)
    assert batch.request_counts.model_dump() == {"total": 60, "completed": 60, "failed": 0}
    assert len(await lines_of(client, batch.output_file_id)) == 60
    again = asked + len(second.engines["a"].seen) - 60
    assert 0 <= again <= 3  # what was under way


@pytest.mark.process
def test_a_killed_server_answers_each_line_once(tmp_path):
    files = str(tmp_path / "files")
    with processes(files=files, queue_seconds=5.0) as running:
        folder = running.sockets[0].parent
        client = openai.OpenAI(base_url=running.url + "/v1", api_key=running.key, max_retries=0)
        data = pack([line(f"r{i}", "tokens=2 delay=0.05") for i in range(3000)])
        file = client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        gateway = running.gateway
        for at_least in (100, 1200):
            deadline = time.monotonic() + 60
            while (found := client.batches.retrieve(batch.id)).request_counts.completed < at_least:
                assert time.monotonic() < deadline, found
                time.sleep(0.01)
            gateway.kill()
            gateway.wait()
            arguments = ["-m", "rollout.entrypoints.serving.gateway", "--config"]
            log = folder / "gateway.log"
            gateway = start_python([*arguments, str(folder / "gateway.json")], log)
            wait_ready(running.url, gateway, log)
        try:
            deadline = time.monotonic() + 60
            while (found := client.batches.retrieve(batch.id)).status != "completed":
                assert time.monotonic() < deadline, found
                time.sleep(0.05)
            text = client.files.content(found.output_file_id).text
        finally:
            gateway.kill()
            gateway.wait()
    ids = [json.loads(one)["custom_id"] for one in text.splitlines()]
    assert len(ids) == len(set(ids)) == 3000


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_an_answer_that_a_crash_cut_off_is_removed_and_asked_again(tmp_path, cut):
    good = b'{"id":"batch_req_0123456789abcdef_00000007","custom_id":"a"}\n'
    path = tmp_path / "part"
    path.write_bytes(good + good.replace(b"07", b"08")[:-cut])
    assert mend(path) == {7}
    assert path.read_bytes() == good
    assert mend(tmp_path / "none") == set()


async def test_an_engine_that_is_away_is_waited_for(serve):
    served = await serve()
    client = client_of(served)
    served.engines["a"].healthy = False
    await until(lambda: not served.state.pools[0].ready, "the engine's fault")
    batch = await begin(client, [line("a", "Hi")])
    await until(lambda: list(served.batches.store.open_batches()), "the batch")
    served.engines["a"].healthy = True
    assert (await ended(client, batch.id)).request_counts.completed == 1


async def test_a_batch_keeps_to_its_keys_limits(serve):
    served = await serve(slots=16)
    key = served.new_key(in_flight_max=3)
    await until(lambda: served.state.ring.find(key.split("-")[2]), "the key")
    client = client_of(served, key)
    batch = await begin(client, [line(f"r{i}", "tokens=2 delay=0.01") for i in range(30)])
    assert (await ended(client, batch.id)).request_counts.completed == 30
    assert served.engines["a"].most <= 2


async def test_a_revoked_key_asks_no_more(serve):
    served = await serve(slots=2)
    key = served.new_key()
    owner = key.split("-")[2]
    await until(lambda: served.state.ring.find(owner), "the key")
    client = client_of(served, key)
    batch = await begin(client, [line(f"r{i}", "tokens=5 delay=0.02") for i in range(500)])
    await until(lambda: served.engines["a"].open, "the batch")
    served.keys.revoke(owner)
    await until(lambda: not list(served.batches.store.open_batches()), "its end")
    assert served.batches.store.batch(owner, batch.id).status == "cancelled"


async def test_rows_are_counted_and_logged_as_requests_are(serve, tmp_path):
    served = await serve(log=str(tmp_path / "log"))
    client = client_of(served)
    await ended(client, (await begin(client, [line("a", "Hi"), line("b", "status=400")])).id)
    page = served.state.metrics.render().decode()
    for code in ("200", "400"):
        assert f'code="{code}",route="/v1/batches",version="m"}} 1.0' in page
    await served.end()
    lines = [json.loads(one) for file in (tmp_path / "log").iterdir() for one in file.open()]
    assert sorted(one["code"] for one in lines) == [200, 400]
    assert {one["path"] for one in lines} == {"/v1/batches"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/responses"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
            "output_expires_after",
        ),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
    ],
)
async def test_what_a_batch_cannot_be_is_refused_by_name(serve, fields, param):
    served = await serve()
    client = client_of(served)
    file = await client.files.create(file=("in.jsonl", pack([line("a", "Hi")])), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **fields}
    status, answer, _ = await served.post("/v1/batches", body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_server_without_a_folder_says_how_it_would_keep_files(gateway):
    served = await gateway()
    client = client_of(served)
    with pytest.raises(openai.NotFoundError, match="--files FOLDER"):
        await client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    with pytest.raises(openai.NotFoundError, match="--files FOLDER"):
        await client.batches.list()
    async with httpx.AsyncClient() as nobody:
        assert (await nobody.get(served.url + "/v1/files")).status_code == 401
