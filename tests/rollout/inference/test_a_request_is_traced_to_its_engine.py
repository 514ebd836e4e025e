"""Traces: a span for each request, in the words of the GenAI conventions, on which the engine's hangs; a collector costs no request anything."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys

import aiohttp
import pytest
from gateway_kit import chat, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from span_collector import collecting, lost_by

from rollout.errors import SpecError
from rollout.inference.gateway.rules.streaming import REASONS_MAX, AnswerNotes
from rollout.inference.gateway.rules.trace_context import TraceParent
from rollout.inference.gateway.traces import RequestTraces, parse_collector

CHAT = "/v1/chat/completions"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def tracing(gateway, collector, share=1.0, settings=None, task="generate", **bounds):
    """A gateway whose spans are sent at once."""
    served = await gateway(settings=settings, aliases={"latest": "m"}, task=task)
    served.state.traces = RequestTraces(
        parse_collector(getattr(collector, "url", collector), share),
        share,
        host="127.0.0.1",
        port=4711,
        lost=served.state.metrics.spans_lost.inc,
        **{"batch_seconds": 0.02, **bounds},
    )
    return served


async def spans_of(collector, count):
    await until(lambda: len(collector.spans) >= count, f"{count} spans")
    return collector.spans


async def test_a_span_says_what_was_asked_and_answered(gateway):
    with collecting() as collector:
        served = await tracing(gateway, collector)
        await served.post(CHAT, chat("Hi", "latest", max_tokens=9, temperature=0.5, seed=3, n=1))
        [span] = await spans_of(collector, 1)
    assert (span.name, span.kind, span.status) == ("chat latest", "SERVER", "UNSET")
    assert span.service == "rollout-gateway"
    told = span.attributes
    assert told["rollout.queue_seconds"] >= 0
    assert told["gen_ai.response.id"].startswith("chatcmpl-")
    for name in ("rollout.queue_seconds", "gen_ai.response.id"):
        del told[name]
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "rollout",
        "gen_ai.request.model": "latest",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "url.path": CHAT,
        "server.address": "127.0.0.1",
        "server.port": 4711,
        "rollout.engine": "a",
        "rollout.engine.kind": "vllm",
        "rollout.retries": 0,
        "rollout.weights.digest": "blake3:m",
    }
    assert collector.paths == ["/v1/traces"]


async def test_the_engine_is_told_whose_span_it_hangs_on(gateway):
    with collecting() as collector:
        served = await tracing(gateway, collector)
        await served.post(CHAT, chat("Hi"))
        [span] = await spans_of(collector, 1)
    [headers] = served.engines["a"].headers
    assert headers["traceparent"] == f"00-{span.trace_id}-{span.span_id}-01"
    assert span.parent_id == ""


async def test_a_stream_says_when_its_first_token_came(gateway):
    with collecting() as collector:
        served = await tracing(gateway, collector)
        await served.stream(chat("tokens=3 delay=0.02"))
        [span] = await spans_of(collector, 1)
    assert span.begun <= span.events["sent"] < span.events["first_token"] < span.ended
    assert span.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert span.attributes["gen_ai.usage.output_tokens"] == 3
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {"prompt": "Hi"}, "text_completion m"),
        ("/v1/responses", {"input": "Hi"}, "chat m"),
        ("/v1/embeddings", {"input": "Hi"}, "embeddings m"),
        ("/v1/rerank", {"query": "Hi", "documents": ["a"]}, "score m"),
        ("/tokenize", {"prompt": "Hi"}, "tokenize m"),
    ],
)
async def test_each_route_has_its_operation(gateway, path, body, name):
    with collecting() as collector:
        task = "embed" if name.startswith(("embeddings", "score")) else "generate"
        served = await tracing(gateway, collector, task=task)
        await served.post(path, {"model": "m", **body})
        [span] = await spans_of(collector, 1)
    assert span.name == name
    assert span.attributes["http.route"] == path


@pytest.mark.parametrize(
    ("share", "flags", "told"), [(0.0, "01", True), (1.0, "00", False), (0.0, "03", True)]
)
async def test_a_clients_own_trace_decides_for_its_request(gateway, share, flags, told):
    with collecting() as collector:
        served = await tracing(gateway, collector, share)
        given = {**served.headers(), "traceparent": f"00-{TRACE}-{SPAN}-{flags}"}
        await served.post(CHAT, chat("Hi"), headers=given)
        [headers] = served.engines["a"].headers
        await served.state.close()
        spans = collector.spans
    assert [(one.trace_id, one.parent_id) for one in spans] == [(TRACE, SPAN)] * told
    assert headers["traceparent"].startswith(f"00-{TRACE}-")
    assert headers["traceparent"].endswith("-01" if told else "-00")


async def test_a_share_of_the_others_is_sampled(gateway):
    with collecting() as collector:
        served = await tracing(gateway, collector, 0.5)
        for _ in range(60):
            await served.post(CHAT, chat("Hi"))
        await served.state.close()
        sampled = len(collector.spans)
    assert 5 < sampled < 55  # 60 fair coins leave it once in 10 ** 10 runs


async def test_an_engine_that_fails_is_an_error_and_a_client_that_errs_is_not(gateway):
    with collecting() as collector:
        served = await tracing(gateway, collector)
        await served.post(CHAT, chat("status=400"))
        await served.post(CHAT, chat("status=500"))
        await served.stream(chat("die"))
        leaving = asyncio.create_task(served.stream(chat("tokens=10000 delay=0.05")))
        await until(lambda: served.engines["a"].open, "the request")
        leaving.cancel()
        spans = await spans_of(collector, 4)
    assert [
        (one.status, one.attributes["http.response.status_code"], one.attributes["error.type"])
        for one in spans
    ] == [
        ("UNSET", 400, "engine_refused"),
        ("ERROR", 502, "engine_error"),
        ("ERROR", 502, "engine_lost"),
        ("UNSET", 499, "499"),
    ]


async def test_a_line_of_the_log_carries_the_trace(gateway, tmp_path):
    with collecting() as collector:
        served = await tracing(gateway, collector, settings={"log": str(tmp_path)})
        await served.post(CHAT, chat("Hi"))
        [span] = await spans_of(collector, 1)
        await served.state.close()
    [line] = [json.loads(one) for file in tmp_path.iterdir() for one in file.open()]
    assert line["trace"] == span.trace_id


EXEMPLIFIED = {
    "rollout_gateway_request_seconds",
    "rollout_gateway_queue_seconds",
    "rollout_gateway_first_byte_seconds",
}
BETWEEN_CHUNKS = "rollout_gateway_inter_chunk_seconds"
"""Where a stream's events did not come in one piece."""


async def read_page(served, accept):
    async with (
        aiohttp.ClientSession() as session,
        session.get(served.url + "/metrics", headers={"Accept": accept}) as answer,
    ):
        return await answer.text(), answer.headers["Content-Type"]


def find_exemplars(page):
    """Of each histogram of an OpenMetrics page: the exemplars of its buckets."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.exemplar is not None:
                found.setdefault(family.name, []).append(sample.exemplar.labels)
    return found


async def test_a_measurement_names_the_trace_that_it_is_of(gateway):
    """To whoever asks for OpenMetrics, as Prometheus does; the page of others is as it was."""
    with collecting() as collector:
        served = await tracing(gateway, collector)
        await served.stream(chat("Hi", stream=True))
        [span] = await spans_of(collector, 1)
        page, kind = await read_page(served, "application/openmetrics-text;version=1.0.0,*/*;q=0.1")
        plain, plain_kind = await read_page(served, "text/plain")
    assert kind.startswith("application/openmetrics-text")
    found = find_exemplars(page)
    assert found.keys() - {BETWEEN_CHUNKS} == EXEMPLIFIED
    for labels in found.values():
        assert labels == [{"trace_id": span.trace_id, "span_id": span.span_id}]
    assert plain_kind.startswith("text/plain")
    assert span.trace_id not in plain


async def test_a_trace_that_nobody_keeps_is_named_by_no_measurement(gateway):
    with collecting() as collector:
        served = await tracing(gateway, collector, share=0.0)
        await served.post(CHAT, chat("Hi"))
        page, _ = await read_page(served, "application/openmetrics-text")
    assert find_exemplars(page) == {}


async def test_without_a_collector_a_line_has_the_clients_trace_and_no_span_is_made(
    gateway, tmp_path
):
    served = await gateway(settings={"log": str(tmp_path)})
    given = {**served.headers(), "traceparent": f"00-{TRACE}-{SPAN}-01"}
    await served.post(CHAT, chat("Hi"), headers=given)
    await served.post(CHAT, chat("Hi"), headers={**given, "traceparent": "<script>"})
    await served.state.close()
    lines = [json.loads(one) for file in tmp_path.iterdir() for one in file.open()]
    assert [one.get("trace") for one in lines] == [TRACE, None]
    assert all("traceparent" not in one for one in served.engines["a"].headers)
    assert served.state.traces is None


async def test_a_collector_that_hangs_holds_no_request_up(gateway):
    with collecting(hangs=True) as collector:
        served = await tracing(gateway, collector)
        await served.post(CHAT, chat("Hi"))
        await until(lambda: collector.hung, "the collector's first request")
        asked = [served.post("/tokenize", {"model": "m", "prompt": "x"}) for _ in range(50)]
        assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}
        assert not collector.spans
        await asyncio.wait_for(served.state.close(), 30)


async def test_what_finds_no_room_is_lost_and_counted(gateway):
    with collecting(hangs=True) as collector:
        served = await tracing(gateway, collector, spans_max=2)
        await served.post(CHAT, chat("Hi"))
        await until(lambda: collector.hung, "the collector's first request")
        for _ in range(5):
            await served.post(CHAT, chat("Hi"))
        await until(lambda: lost_by(served.state) == 3, "three lost spans")
        collector.release.set()
        await served.state.close()
    assert len(collector.spans) == 3


async def test_a_collector_that_is_gone_costs_spans_and_its_return_is_seen(gateway, caplog):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    served = await tracing(gateway, url, send_seconds_max=0.5)

    def said():
        return [one.getMessage() for one in caplog.records if url in one.getMessage()]

    for lost in (1, 2):
        status, _, _ = await served.post(CHAT, chat("Hi"))
        assert status == 200
        await until(lambda lost=lost: lost_by(served.state) == lost, "a lost span")
    with collecting(port=port) as collector:
        await served.post(CHAT, chat("Hi"))
        await spans_of(collector, 1)
        await until(lambda: len(said()) == 2, "a word of its return")
    assert ["takes no traces" in said()[0], "takes traces again" in said()[1]] == [True, True]


async def test_a_gateway_is_told_of_its_collector_by_its_settings(gateway):
    with collecting() as collector:
        url = parse_collector(collector.url, 1.0)
        served = await gateway(settings={"traces": url, "traces_share": 1.0, "port": 4711})
        await served.post(CHAT, chat("Hi"))
        await served.state.close()
    assert [one.attributes["server.port"] for one in collector.spans] == [4711]


def test_reasons_to_end_are_read_off_fields_and_not_off_what_a_model_says():
    notes = AnswerNotes()
    said = {"message": {"content": '{"finish_reason":"forged"}'}, "finish_reason": "stop"}
    notes.look(json.dumps({"id": "chatcmpl-1", "choices": [said]}).encode())
    notes.look(json.dumps({"id": "other", "choices": [said]}, separators=(",", ":")).encode())
    assert (notes.id, notes.finish_reasons) == ("chatcmpl-1", ["stop", "stop"])
    notes.look(b'"finish_reason":"stop"' * 1000)
    assert len(notes.finish_reasons) == REASONS_MAX


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01more",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        "٠" * 55,
    ],
)
def test_a_broken_traceparent_is_nobodys(header):
    assert TraceParent.parse(header) is None


def test_a_traceparent_of_a_later_version_is_read_as_far_as_it_is_known():
    parent = TraceParent.parse(f"01-{TRACE}-{SPAN}-01-more")
    assert parent is not None
    assert parent.render() == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("url", "share", "words"),
    [
        ("127.0.0.1:4318", 1.0, "expected a collector's"),
        ("ftp://host", 1.0, "expected a collector's"),
        ("http://", 1.0, "expected a collector's"),
        ("http://host:0", 1.0, "expected a collector's"),
        ("http://host:99999", 1.0, "expected a collector's"),
        ("http://[::1", 1.0, "expected a collector's"),
        ("http://host/?key=x", 1.0, "expected a collector's"),
        ("http://me:secret@host", 1.0, "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://host", 1.5, "--traces-share 1.5"),
        ("http://host", float("nan"), "--traces-share nan"),
    ],
)
def test_what_is_no_collector_or_share_is_refused(url, share, words):
    with pytest.raises(SpecError, match=words) as refused:
        parse_collector(url, share)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("https://host/", "https://host/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
    ],
)
def test_a_collector_without_a_path_has_otlps(url, whole):
    assert parse_collector(url, 1.0) == whole


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--traces", "http://127.0.0.1:4318"), "pip install 'rollout-rl[traces]'"),
        (("--traces-share", "0.5"), "name a collector, --traces"),
    ],
)
def test_a_missing_extra_is_named_before_anything_starts(tmp_path, words, said):
    code = (
        "import sys; sys.modules['opentelemetry'] = None\nfrom rollout.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "infer", "serve", "rollout://tiny-adder", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin", "ROLLOUT_HOME": str(tmp_path), "COLUMNS": "200"},
        timeout=120,
    )
    assert done.returncode != 0
    assert said in done.stderr + done.stdout
