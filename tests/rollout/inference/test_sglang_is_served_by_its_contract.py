"""Behind the gateway stands a server that does as SGLang's source says: asked at a port of its own, with its key, started again when it dies."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from serving_kit import serving
from sglang_stand_in import read_notes, stand_in
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import SpecError
from rollout.serving.engines import EngineChoice, VersionEngines
from rollout.serving.targets import ReadyModel

pytestmark = pytest.mark.process

MODEL = "rollout://tiny-adder"
WORDS = (f"adder={MODEL}", "--engine", "sglang", "--device", "cuda")
ASK = {"model": "adder", "messages": [{"role": "user", "content": "3+4="}], "max_tokens": 4}
WAIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def home():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def served(home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLOUT_SGLANG_PYTHON", str(stand_in(home)))
        with serving(home, *WORDS, "--files", "kept") as found:
            yield found


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=served.url, api_key=served.key, max_retries=0)


def say(text: str) -> dict:
    return {**ASK, "messages": [{"role": "user", "content": text}]}


def noted(home: Path, name: str) -> list:
    return [one[name] for one in read_notes(home) if name in one]


def wait_until_answered(client: openai.OpenAI) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            client.chat.completions.create(**ASK)
        except openai.APIStatusError:
            continue
        return
    raise AssertionError("the engine did not come back")


def test_a_chat_and_a_text_are_answered_whole_and_streamed(client):
    whole = client.chat.completions.create(**ASK)
    assert whole.choices[0].message.content == "w w w w "
    assert whole.usage.prompt_tokens_details.cached_tokens == 3

    chunks = list(client.chat.completions.create(**ASK, stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "w w w w "
    assert not [one for one in chunks if one.usage]
    text = client.completions.create(model="adder", prompt="3+4=", max_tokens=4, stream=True)
    assert "".join(one.choices[0].text for one in text) == "w w w w "


def test_its_key_and_options_are_in_a_file_that_only_its_user_reads(served, client, home):
    client.chat.completions.create(**ASK)
    [options] = noted(home, "options")[:1]
    [words] = noted(home, "words")[:1]

    assert noted(home, "mode")[0] == 0o600
    assert len(options["api-key"]) == 64
    assert options["api-key"] not in " ".join(words)
    assert options["host"] == "127.0.0.1"
    assert (options["served-model-name"], options["device"]) == ("adder", "cuda")
    assert noted(home, "environment")[0] == {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    logs = [one.read_text() for one in (served.home / "gateway" / "logs").rglob("*.log")]
    assert logs
    assert not [one for one in logs if options["api-key"] in one]


def test_who_has_not_its_key_is_refused_at_its_port(client, home):
    client.chat.completions.create(**ASK)
    options = noted(home, "options")[0]

    answer = httpx.post(
        f"http://127.0.0.1:{options['port']}/v1/chat/completions", json=ASK, trust_env=False
    )

    assert answer.status_code == 401


def test_tenants_do_not_share_a_cache(client, home):
    client.chat.completions.create(**ASK)

    bodies = [one for one in noted(home, "body") if "messages" in one]
    assert bodies
    assert all(one["cache_salt"] for one in bodies)


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("chat/completions", "structured_outputs", {"json": {}}),
        ("chat/completions", "include_stop_str_in_output", True),
        ("chat/completions", "add_generation_prompt", False),
        ("completions", "suffix", "x"),
        ("completions", "best_of", 2),
    ],
)
def test_a_field_that_it_would_not_heed_is_refused_by_name(served, home, path, field, value):
    before = len(noted(home, "body"))
    prompt = ASK if path == "chat/completions" else {"model": "adder", "prompt": "3"}

    answer = httpx.post(
        f"{served.url}/{path}",
        json={**prompt, field: value},
        headers={"Authorization": f"Bearer {served.key}"},
        trust_env=False,
    )

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert len(noted(home, "body")) == before


def test_a_path_that_is_not_its_own_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="not answered by sglang"):
        client.responses.create(model="adder", input="3")


def test_its_flat_errors_are_told_as_openais(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**ASK, "max_tokens": 100_000})

    assert caught.value.code == "context_length_exceeded"
    assert caught.value.type == "invalid_request_error"


def test_half_an_answer_is_an_error_event_and_the_next_request_is_served(client):
    for wish in ("die", "fail"):
        with pytest.raises(openai.APIError):
            list(client.chat.completions.create(**say(wish), stream=True))
        wait_until_answered(client)


def test_one_that_dies_is_started_again(client, home):
    starts = len(noted(home, "options"))
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(**say("exit"), stream=True))

    wait_until_answered(client)

    assert len(noted(home, "options")) == starts + 1


def test_a_client_that_leaves_frees_it(client, home):
    before = len(noted(home, "freed"))
    stream = client.chat.completions.create(**say("tokens=600 delay=0.1"), stream=True)
    next(iter(stream))
    stream.close()

    deadline = time.monotonic() + WAIT_SECONDS
    while len(noted(home, "freed")) == before:
        assert time.monotonic() < deadline, "it was not freed"
        time.sleep(0.05)


def build(tmp_path: Path, **choice) -> VersionEngines:
    """Engines of a model, as the command asks for them."""
    model = ReadyModel(
        name="m",
        aliases=(),
        digest="blake3:m",
        folder=tmp_path,
        created=1,
        context_tokens=64,
        task=choice.pop("task", "generate"),
    )
    wanted = EngineChoice(**{"kind": "sglang", "device": "cuda", **choice})
    return VersionEngines(model, wanted, tmp_path)


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({}, "ROLLOUT_SGLANG_PYTHON"),
        ({"device": "cpu"}, "--device cuda"),
        ({"task": "embed"}, "not embed"),
        ({"tool_parser": "../x"}, "a name of SGLang's"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_starts(tmp_path, monkeypatch, choice, named):
    python = stand_in(tmp_path)
    monkeypatch.setenv("ROLLOUT_SGLANG_PYTHON", str(python) if choice else "")

    with pytest.raises(SpecError, match=named):
        build(tmp_path, **choice)

    assert not read_notes(tmp_path)


def test_a_flag_of_another_engine_is_refused_by_name():
    told = CliRunner().invoke(app, ["infer", "serve", *WORDS, "--vllm-argument", "seed=1"])

    assert isinstance(told.exception, SpecError)
    assert "--vllm-argument is not of the sglang engine" in str(told.exception)


def test_nothing_of_it_is_left_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_SGLANG_PYTHON", str(stand_in(tmp_path)))
    with serving(tmp_path, *WORDS) as served:
        children = psutil.Process(served.process.pid).children(recursive=True)
        assert [one for one in children if "sglang.launch_server" in one.cmdline()]
        assert served.interrupt() == 0

    assert not psutil.wait_procs(children, timeout=WAIT_SECONDS)[1]
