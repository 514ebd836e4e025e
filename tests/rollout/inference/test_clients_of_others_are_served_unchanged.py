"""Clients as they come from PyPI and npm, and curl, before a gateway: streams, tools, structured output, vectors, files and batches, retries, timeouts.

Each is a program of ``clients/`` that its users could have written; simulated engines answer. lm-evaluation-harness measures the real embedded engine.
They are installed, pinned, into the user's cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
from gateway_kit import write_tasks
from gateway_processes import processes
from pinned_packages import LITELLM, installed, installed_modules
from serving_kit import serving

from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.models.resolve import resolve_model

pytestmark = [pytest.mark.slow, pytest.mark.process]
CLIENTS = Path(__file__).with_name("clients")
MODEL = "rollout://tiny-adder"
SECONDS = 300
LANGCHAIN = (
    "langchain-openai==1.7.3",
    "langchain-core==1.7.2",
    "langchain-protocol==0.0.20",
    "langsmith==0.15.1",
    "requests-toolbelt==1.0.0",
    "tenacity==9.2.1",
    "uuid-utils==0.19.0",
)
NODE = ("openai@6.49.0",)
"""The newest that takes Node 20."""
HARNESS = (
    "lm-eval==0.4.13",
    *("chardet==6.0.0.post1", "colorama==0.4.6", "dataproperty==1.1.1", "defusedxml==0.7.1"),
    *("evaluate==0.4.6", "joblib==1.6.0", "lxml==6.1.3", "mbstrdecoder==1.1.5"),
    *("more-itertools==11.2.1", "narwhals==2.29.0", "nltk==3.10.4", "pathvalidate==3.3.1"),
    *("portalocker==4.4.2", "pytablewriter==1.2.1", "pytz==2026.6", "rouge-score==0.1.2"),
    *("sacrebleu==2.6.0", "scikit-learn==1.9.1", "scipy==1.17.1", "sqlitedict==2.1.0"),
    *("tabledata==1.3.5", "tabulate==0.10.0", "tcolorpy==0.1.7", "tenacity==9.2.1"),
    *("threadpoolctl==3.8.0", "typepy==1.3.5", "word2number==1.1"),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A gateway with files, before an engine that is three models; the key may do all, the other 12 requests a minute."""
    files = tmp_path_factory.mktemp("files")
    with processes(files=str(files)) as running:
        write_tasks(running.folder / "table.json", running.sockets[0])
        wait_for_models(running)
        keys = KeyFile(running.folder / "keys")
        limits = KeyLimits(requests_per_minute=12)
        yield running, keys.create("limited", limits, now=time.time(), expires=None)


def wait_for_models(running):
    deadline = time.monotonic() + 60
    ask = urllib.request.Request(running.url + "/v1/models", headers=running.headers())
    while {one["id"] for one in json.load(urllib.request.urlopen(ask))["data"]} != {
        *("text", "vectors", "scores")
    }:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def tokenizer():
    with tempfile.TemporaryDirectory() as cache:
        yield resolve_model(MODEL, cache_dir=Path(cache)).path


def beside(pins):
    """The environment in which these packages are found first."""
    folder, why = installed(pins)
    if folder is None:
        pytest.skip(why)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    return {**os.environ, **quiet, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def run(command, env, place):
    done = subprocess.run(
        command, cwd=place, env=env, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-6000:]
    return done.stdout


def test_langchain_openai(served, tokenizer, tmp_path):
    running, _ = served
    program = [sys.executable, str(CLIENTS / "langchain_client.py")]
    words = [running.url + "/v1", running.key, str(tokenizer)]
    said = run([*program, *words], beside(LANGCHAIN), tmp_path)
    assert said.split() == ["talk", "call", "structure", "embed", "fail"]


def test_litellm(served, tmp_path):
    running, _ = served
    program = [sys.executable, str(CLIENTS / "litellm_client.py"), running.url + "/v1", running.key]
    said = run(program, beside(LITELLM), tmp_path)
    done = [line for line in said.splitlines() if line.isalpha()]  # it writes of errors there, too
    assert done == ["talk", "call", "structure", "embed", "batch", "fail"]


def test_openais_client_for_node(served):
    running, limited = served
    node = shutil.which("node")
    folder, why = installed_modules(NODE) if node else (None, "node is not installed")
    if folder is None:
        pytest.skip(why)
    program = [str(node), str(CLIENTS / "openai_client.mjs"), running.url + "/v1"]
    said = run([*program, running.key, limited], dict(os.environ), folder)
    assert said.split() == ["talk", "call", "structure", "embed", "batch", "wait", "fail"]
    page = urllib.request.urlopen(running.url + "/metrics").read().decode()
    assert 'rollout_gateway_rejected_total{reason="key_limit"}' in page


def test_curl_takes_a_file_through_a_batch(served, tmp_path):
    running, _ = served

    def curl(path, *words):
        head = ["curl", "-sS", "--fail-with-body", "-H", f"Authorization: Bearer {running.key}"]
        return run([*head, *words, f"{running.url}/v1/{path}"], dict(os.environ), tmp_path)

    body = {"model": "vectors", "input": ["a", "b"]}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/embeddings", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    file = json.loads(curl("files", "-F", "purpose=batch", "-F", "file=@in.jsonl"))
    order = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    begun = json.loads(curl("batches", "-d", json.dumps(order)))
    deadline = time.monotonic() + 60
    while (found := json.loads(curl(f"batches/{begun['id']}")))["status"] != "completed":
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    [answer] = curl(f"files/{found['output_file_id']}/content").splitlines()
    assert len(json.loads(answer)["response"]["body"]["data"]) == 2


def write_task_of_harness(folder):
    """A task over four sums, by what the model writes."""
    rows = [{"sum": f"{a}+{b}=", "answer": str(a + b)} for a, b in ((1, 2), (3, 4), (2, 2), (5, 1))]
    (folder / "sums.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    head = f"""dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/sums.jsonl}}}}
test_split: test
doc_to_text: "{{{{sum}}}}"
"""
    written = """task: written
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 4, temperature: 0}
metric_list: [{metric: exact_match}]
"""
    (folder / "written.yaml").write_text(head + written)


def test_the_harness_measures_the_embedded_engine(tokenizer, tmp_path):
    env = beside(HARNESS)
    write_task_of_harness(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    with serving(home, f"adder={MODEL}") as found:
        at = f"model=adder,base_url={found.url}/completions,tokenizer={tokenizer},num_concurrent=2"
        words = ["--model", "local-completions", "--model_args", f"{at},tokenized_requests=False"]
        tasks = ["--tasks", "written", "--include_path", str(tmp_path), "--output_path", "out"]
        program = [sys.executable, "-m", "lm_eval", *words, *tasks]
        run(program, {**env, "OPENAI_API_KEY": found.key, "HF_HOME": str(tmp_path)}, tmp_path)
    [results] = tmp_path.glob("out/**/results_*.json")
    told = json.loads(results.read_text())
    assert told["n-samples"]["written"]["effective"] == 4
    assert 0 <= told["results"]["written"]["exact_match,none"] <= 1
