"""``rollout eval --suite mmlu``: the numbers are those of a plain forward of transformers under lm-evaluation-harness' rule.

The rule is written out here once more, from ``lm_eval`` 0.4.13 (``tasks/mmlu``, ``api/model.py``, ``api/task.py``) and
with nothing of rollout's: prompts, token boundaries, sums, norms, ties.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from local_jobs import start_job
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.report.gather import open_ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(900), pytest.mark.usefixtures("warm_starts")]

MERGES = [("Ġ", "A"), ("Ġ", "B"), ("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "n"), ("e", "r")]
SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "likelihood.yaml"
NUM_ROWS = 52
SHOTS = 1


def write_model(folder: Path) -> Path:
    """A random Qwen2 over bytes with some merges: letters of one token and of two."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *("".join(pair) for pair in MERGES), "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=MERGES)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048}
    config = Qwen2Config(vocab_size=len(tokens), tie_word_embeddings=True, **sizes, **heads)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**described, "chat_template": template})
    )
    return folder


def draw_rows(seed: int, number: int, subjects: tuple[str, ...]) -> list[dict]:
    draw = random.Random(seed)
    words = [
        "the moon",
        "one",
        "another one",
        "käse",
        "er",
        "ther on",
        "a longer answer",
        "水",
        "A",
    ]
    return [
        {
            "question": f" Which of {draw.randint(1, 999)} is on {draw.choice(words)}?\t",
            "subject": subjects[place % len(subjects)],
            "choices": draw.sample(words, 4),
            "answer": draw.randrange(4) if place % 3 else "ABCD"[draw.randrange(4)],
        }
        for place in range(number)
    ]


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))


# -- the harness' rule, once more -------------------------------------------------------------------


def place_of(row):
    return "ABCD".index(row["answer"]) if isinstance(row["answer"], str) else row["answer"]


def letters_of(row):
    return "ABCD", (
        f"{row['question'].strip()}\nA. {row['choices'][0]}\nB. {row['choices'][1]}\nC. {row['choices'][2]}\n"
        f"D. {row['choices'][3]}\nAnswer:"
    )


def texts_of(row):
    return row["choices"], f"Question: {row['question'].strip()}\nAnswer:"


SUITES = {
    "mmlu": (
        letters_of,
        "The following are multiple choice questions (with answers) about {}.\n\n",
    ),
    "mmlu-continuation": (texts_of, "The following are questions (with answers) about {}.\n\n"),
}


def asked_by_the_harness(suite, row, dev):
    ask, description = SUITES[suite]
    shown = [one for one in dev if one["subject"] == row["subject"]][:SHOTS]
    blocks = [f"{ask(one)[1]} {ask(one)[0][place_of(one)]}\n\n" for one in shown]
    return description.format(row["subject"].replace("_", " ")) + "".join(blocks) + ask(row)[1]


def scored_by_the_harness(suite, row, context, model, tokenizer):
    choices = SUITES[suite][0](row)[0]
    before = tokenizer(context)["input_ids"]
    wholes = [tokenizer(f"{context} {choice}")["input_ids"] for choice in choices]
    longest = max(map(len, wholes))
    padded = [
        [*whole[:-1], *[0] * (longest - len(whole))] for whole in wholes
    ]  # on the right: unseen
    with torch.no_grad():
        said = torch.log_softmax(model(torch.tensor(padded)).logits.float(), -1)
    lls = [
        float(
            said[
                n, len(before) - 1 + np.arange(len(whole) - len(before)), whole[len(before) :]
            ].sum()
        )
        for n, whole in enumerate(wholes)
    ]
    lengths = np.array([float(len(one)) for one in choices])
    sizes = np.array([float(len(one.encode())) for one in choices])
    found = [np.array(lls), np.array(lls) / lengths, np.array(lls) / sizes]
    right = [float(np.argmax(one) == place_of(row)) for one in found]
    return {"logprobs": lls, **dict(zip(("acc", "acc_norm", "acc_bytes"), right, strict=True))}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("likelihood")
    write_model(folder / "model")
    subjects = ("our_own_sums", "abstract_cheese")
    write_rows(folder / "test.jsonl", draw_rows(1, NUM_ROWS, subjects))
    write_rows(folder / "dev.jsonl", draw_rows(2, 8, subjects))
    return folder


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(here, monkeypatch, *words, suites="mmlu,mmlu-continuation"):
    monkeypatch.chdir(here)
    monkeypatch.setenv("ROLLOUT_HOME", str(here / "runs"))
    given = [
        word
        for suite in suites.split(",")
        for name, value in (("uri", "test.jsonl"), ("shotsUri", "dev.jsonl"), ("shots", SHOTS))
        for word in ("--parameter", f"{suite}.{name}={value}")
    ]
    model = f"file://{here / 'model'}"
    words = ["eval", "--model", model, "--suite", suites, *given, "--output", "json", *words]
    return CliRunner().invoke(app, words)


def test_letters_and_texts_are_scored_as_a_plain_forward_scores_them(here, monkeypatch):
    done = measure(here, monkeypatch, "--fast")
    assert done.exit_code == 0, (done.output, done.exception)
    outcome = json.loads(done.stdout)
    model = AutoModelForCausalLM.from_pretrained(here / "model", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(here / "model")
    rows, dev = rows_of(here / "test.jsonl"), rows_of(here / "dev.jsonl")

    for measured in outcome["evaluations"]:
        suite = measured["name"]
        with open_ledger(Path(outcome["run_dir"])) as ledger:
            ours = [one.trajectory for one in ledger.evaluation_samples(suite, "report", 0)]
        prompts = [asked_by_the_harness(suite, row, dev) for row in rows]
        assert [one.prompt_text for one in ours] == prompts
        theirs = [
            scored_by_the_harness(suite, row, prompt, model, tokenizer)
            for row, prompt in zip(rows, prompts, strict=True)
        ]
        for mine, other in zip(ours, theirs, strict=True):
            logprobs = [mine.rewards[f"{suite}/logprob_{place}"] for place in range(4)]
            assert logprobs == pytest.approx(other["logprobs"], abs=2e-4)
        for name in ("acc", "acc_norm", "acc_bytes"):
            assert [one.rewards[f"{suite}/{name}"] for one in ours] == [one[name] for one in theirs]
            mean = sum(one[name] for one in theirs) / NUM_ROWS
            assert measured["metrics"][name]["value"] == pytest.approx(mean)
        accuracy = measured["metrics"]["accuracy"]["value"]
        assert accuracy == measured["metrics"]["acc"]["value"]
        assert 0 < accuracy < 1


BESIDE = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: beside}}
spec:
  model: {{uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=512"}}
  train:
    algorithm: {{grpo: {{promptsPerStep: 2, groupSize: 4}}}}
    environment: {{builtin: {{name: arithmetic}}}}
    rewards: [{{python: {{path: even.py, function: even}}}}]
    sampling: {{maxNewTokens: 4}}
    optimizer: {{adamw: {{learningRate: "1e-3"}}}}
    maxSteps: 2
  numerics: {{mode: Fast}}
  evaluations:
  - suite: {{builtin: {{name: mmlu, parameters: [{{name: uri, value: {uri}}}]}}}}
    atStart: true
    everySteps: 1
"""


@pytest.mark.slow
def test_steps_of_a_training_run_are_measured_by_likelihood(here):
    job = start_job(here / "trained", manifest=BESIDE.format(uri=here / "test.jsonl"))
    job.finish()

    with open_ledger(job.run_dir) as ledger:
        steps = [
            [one.trajectory.rewards for one in ledger.evaluation_samples("mmlu", "report", step)]
            for step in (0, 1, 2)
        ]
    assert [len(one) for one in steps] == [len(steps[0])] * 3
    assert all("mmlu/acc_norm" in rewards for step in steps for rewards in step)
    assert steps[0] != steps[2], "what was trained must change the log-likelihoods"


@pytest.mark.slow
def test_an_answer_longer_than_a_reply_may_be_ends_the_run_by_name(here, monkeypatch):
    rows = rows_of(here / "test.jsonl")[:2]
    write_rows(
        here / "long.jsonl", [{**row, "choices": ["a " * 400, "b", "c", "d"]} for row in rows]
    )
    monkeypatch.chdir(here)
    monkeypatch.setenv("ROLLOUT_HOME", str(here / "runs"))
    words = ["--suite", "mmlu-continuation", "--parameter", "mmlu-continuation.uri=long.jsonl"]

    done = CliRunner().invoke(
        app, ["eval", "--model", f"file://{here / 'model'}", *words, "--fast"]
    )

    assert done.exit_code != 0
    assert "maxNewTokens is 256; raise it to 8" in done.output + str(done.exception)


@pytest.mark.slow
def test_the_sample_measures_letters_and_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(SAMPLE.parents[2])
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "runs"))

    done = CliRunner().invoke(app, ["run", "-f", str(SAMPLE), "--output", "json"])

    assert done.exit_code == 0, (done.output, done.exception)
    measured = json.loads(done.stdout)["evaluations"]
    assert [(one["name"], one["metrics"]["num_prompts"]) for one in measured] == [
        ("mmlu", 8),
        ("mmlu-continuation", 8),
    ]
