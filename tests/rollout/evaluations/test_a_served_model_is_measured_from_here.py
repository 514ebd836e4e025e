"""``rollout eval --url`` against a server on this machine: answered once, resumed, compared, and never scored for an outage."""

from __future__ import annotations

import json

import pytest
from chat_server import ChatServer
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import InfrastructureError, SpecError

QUESTIONS = [
    {"question": f"Which is {n}?", "choices": list("1234"), "answer": n % 4, "subject": "our_own"}
    for n in range(12)
]
SUITE = ["--suite", "mmlu-generative", "--parameter", "mmlu-generative.uri=mine.jsonl"]


@pytest.fixture
def server():
    with ChatServer() as one:
        one.say = always_right
        yield one


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "mine.jsonl").write_text("\n".join(json.dumps(one) for one in QUESTIONS))
    return tmp_path


def always_right(asked):
    number = int(asked.split("Which is ")[1].split("?")[0])
    return " " + "ABCD"[number % 4]


def half_right(asked):
    number = int(asked.split("Which is ")[1].split("?")[0])
    return always_right(asked) if number < 6 else "none"


def measure(server, *words):
    words = ["eval", "--url", server.url, "--model", "m", *SUITE, "--output", "json", *words]
    return CliRunner().invoke(app, words)


def metrics_of(done):
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)["evaluations"][0]["metrics"]


def test_each_prompt_is_asked_once_and_scored(server):
    metrics = metrics_of(measure(server))

    assert metrics["accuracy"]["value"] == metrics["exact"]["value"] == 1
    assert (metrics["num_prompts"], metrics["num_excluded"], metrics["tokens_mean"]) == (12, 0, 20)
    assert len(server.asked) == 12
    assert {one["model"] for one in server.asked} == {"m"}
    assert server.asked[0]["stop"] == ["</s>", "\n"]
    assert server.asked[0]["temperature"] == 0


def test_a_key_comes_from_the_environment_and_stands_nowhere(server, here, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")

    metrics_of(measure(server, "--key-env", "MY_KEY", "--limit", "2"))

    assert server.headers[0]["Authorization"] == "Bearer sk-secret"
    kept = b"".join(path.read_bytes() for path in (here / "runs").rglob("*") if path.is_file())
    assert b"sk-secret" not in kept


def test_an_outage_ends_the_measuring_which_goes_on_where_it_was(server, monkeypatch):
    monkeypatch.setattr("rollout.cli.starting.measuring.TRIES_MAX", 1)
    server.say = lambda asked: 503 if "Which is 9" in asked else always_right(asked)
    first = measure(server, "--concurrency", "1")

    said = json.loads(first.stdout)
    assert (first.exit_code, said["reason"], said["num_unanswered"]) == (4, "Unanswered", 1)
    server.say, server.asked = always_right, []
    metrics = metrics_of(measure(server, "--resume", "Latest"))

    assert metrics["num_prompts"] == 12
    assert metrics["num_excluded"] == 0
    assert len(server.asked) == 1


def test_a_server_that_is_away_ends_the_measuring_and_scores_nobody(server, monkeypatch, here):
    monkeypatch.setattr("rollout.cli.starting.measuring.TRIES_MAX", 1)
    server.say = lambda _: 503

    done = measure(server)

    assert isinstance(done.exception, InfrastructureError)
    assert "no prompt of 12 was answered" in str(done.exception)
    assert (here / "runs" / "eval-1" / "items.jsonl").read_text().count("\n") == 1


def test_a_line_that_a_crash_tore_off_is_asked_again(server, here):
    metrics_of(measure(server))
    path = here / "runs" / "eval-1" / "items.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    server.asked = []

    metrics = metrics_of(measure(server, "--resume", "Latest"))

    assert metrics["num_prompts"] == 12
    assert len(server.asked) == 1


def test_a_prompt_that_is_refused_is_left_out_and_counted(server):
    server.say = lambda asked: 400 if "Which is 3" in asked else always_right(asked)

    metrics = metrics_of(measure(server))

    assert (metrics["num_prompts"], metrics["num_excluded"]) == (11, 1)


@pytest.mark.parametrize(
    ("status", "said"), [(401, "HTTP 401"), (404, "name 'm'"), (302, "HTTP 302")]
)
def test_a_wrong_key_or_address_is_named_at_once(server, status, said):
    server.say = lambda _: status

    done = measure(server, "--limit", "3")

    assert isinstance(done.exception, SpecError)
    assert said in str(done.exception)


def test_another_measuring_does_not_go_on_in_the_same_folder(server):
    metrics_of(measure(server))

    done = measure(server, "--resume", "Latest", "--samples", "2")

    assert isinstance(done.exception, SpecError)
    assert "was begun with another" in str(done.exception)


def test_two_measurings_are_compared_prompt_by_prompt(server):
    server.say = half_right
    metrics_of(measure(server, "--name", "before"))
    server.say = always_right

    done = measure(server, "--name", "after", "--baseline", "before-1")

    found = {one["metric"]: one for one in json.loads(done.stdout)["baseline"]}
    assert found["accuracy"]["value"] == 0.5
    assert found["accuracy"]["told_apart"]
    assert found["mmlu/exact"]["num_prompts"] == 12
    assert 0 < found["accuracy"]["low"] < 0.5 < found["accuracy"]["high"]


def test_the_answers_can_be_read(server):
    server.say = half_right
    metrics_of(measure(server))

    wrong = CliRunner().invoke(app, ["runs", "answers", "eval-1", "--wrong", "--output", "json"])

    rows = json.loads(wrong.stdout)
    assert [row["place"] for row in rows] == [6, 7, 8, 9, 10, 11]
    assert {row["text"] for row in rows} == {"none"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--run", "a"], "--url takes --model"),
        (["--dry-run"], "--url takes --model"),
        (["--baseline", "hf://owner/name"], "name a run that has measured it"),
        (["--baseline", "nobody-1"], "no run 'nobody-1'"),
        (["--snapshot", "s"], "--snapshot is not supported"),
    ],
)
def test_what_does_not_go_together_is_refused(server, words, said):
    done = measure(server, *words)

    assert isinstance(done.exception, SpecError)
    assert said in str(done.exception)


def test_a_key_does_not_go_over_the_network_in_the_clear(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    words = ["eval", "--url", "http://192.0.2.1/v1", "--model", "m", *SUITE]

    done = CliRunner().invoke(app, words)

    assert isinstance(done.exception, SpecError)
    assert "over https:// or to this machine only" in str(done.exception)
    assert "sk-secret" not in str(done.exception)
