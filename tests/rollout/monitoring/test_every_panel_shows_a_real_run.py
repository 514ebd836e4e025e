"""Debian's Prometheus scrapes real runs of this machine, a real gateway and the operator's own pages: every query of every dashboard has data.

A training run with ``ROLLOUT_METRICS_PORT``, a batch, a gateway under requests that are answered, streamed, refused and failed. Of operator and
webhook, which need a cluster, it is their real registries, served by this process after each series was counted once.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prometheus_client import start_http_server
from prometheus_kit import Target, scraping, tool

from cluster.control.ports import find_free_port

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))

from gateway_processes import processes, stream_body

from rollout_operator.metrics import build_metrics, watch_gauges
from rollout_operator.rotation.__main__ import Health
from rollout_operator.webhook.server import Ports, WebhookServer
from rollout_operator.webhook.tls import Certificate, KeyPair

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(900)]
FILES = Path(__file__).parents[3] / "charts" / "rollout" / "files"
DASHBOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((FILES / "dashboards").glob("*.json"))
}
MODEL = "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"
COMMAND = (sys.executable, "-c", "from rollout.cli.main import main; main()")
TRAINS = f"""
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: sums}}
spec:
  model: {{uri: "{MODEL}"}}
  train:
    algorithm: {{grpo: {{promptsPerStep: 4, groupSize: 4}}}}
    environment: {{builtin: {{name: arithmetic, parameters: [{{name: digits, value: "1"}}]}}}}
    sampling: {{maxNewTokens: 5}}
    rewards: [{{builtin: {{name: exact-match}}}}]
    maxSteps: 100000
"""
ANSWERS = f"""
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: answers}}
spec:
  model: {{uri: "{MODEL}"}}
  infer:
    data: {{jsonl: {{uri: rows.jsonl}}}}
    sampling: {{maxNewTokens: 24}}
"""
NUM_ROWS = 50_000
WARM = {
    "runs": "rollout_step_number > 3 and rollout_actors_needed",
    "batches": "rollout_rows_left_seconds and on (pod) rollout_row_tokens_total > 0",
    "endpoints": "rollout_gateway_requests_total{code='502'} > 3",
    "engines": "rollout_gateway_requests_total{code='200'} > 3",
    "operator": "rollout_reconcile_total > 3",
}
"""What is waited for before a dashboard is looked at."""
EMPTY = {"rollout_actors_wanted"}
"""Only of runs with ``actors.autoscale``; it stands beside another series of its panel."""


@contextmanager
def running(folder, manifest, port):
    """A run as a person starts it, interrupted at the end of the block."""
    folder.mkdir()
    (folder / "run.yaml").write_text(manifest)
    write_rows(folder)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"ROLLOUT_HOME": str(folder), "ROLLOUT_METRICS_PORT": str(port)}
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(
            [*COMMAND, "run", "-f", "run.yaml"], cwd=folder, env=env, stdout=said, stderr=said
        )
    try:
        yield
        assert process.poll() is None, (folder / "said.txt").read_text()
    finally:
        for _ in range(2):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
        process.wait(120)


def write_rows(folder):
    rows = (json.dumps({"prompt": f"{n}+{n % 7}="}) + "\n" for n in range(NUM_ROWS))
    (folder / "rows.jsonl").write_text("{broken\n" + "".join(rows))


def operators_pages(folder):
    """Of operator, webhook and who renews certificates, each series counted; they go on counting when they are called again."""
    ours = build_metrics()
    watch_gauges(
        ours,
        queue_depth=lambda: 2,
        leading=lambda: True,
        ages=lambda: {"pods": 1.0},
        reasons=lambda: {"Running": 1},
    )
    pair = KeyPair(certificate=folder / "tls.crt", key=folder / "tls.key")
    webhook = WebhookServer(Certificate(pair), Ports(host="127.0.0.1"))

    rotation = Health()
    rotation.expiry.set(time.time() + 3600)

    def count():
        ours.reconciles.labels(result="success").inc()
        ours.duration.observe(0.01)
        ours.queue_latency.observe(0.01)
        ours.count_request("apply", 200)
        ours.count_request("apply", 409)
        webhook._reviews.labels("allowed").inc()
        webhook._seconds.observe(0.001)

    return (ours.registry, webhook._registry, rotation.registry), count


def ask_gateway(gateway):
    """One of each kind: answered, streamed, failed, and refused for its key."""
    plain = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    failing = {**plain, "messages": [{"role": "user", "content": "status=500"}]}
    good = gateway.headers()
    for body, headers in (
        (json.dumps(plain).encode(), good),
        (stream_body("tokens=8 delay=0.01"), good),
        (json.dumps(failing).encode(), good),
        (json.dumps(plain).encode(), {"Authorization": "Bearer sk-none"}),
    ):
        asked = urllib.request.Request(gateway.url + "/v1/chat/completions", body, headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                answer.read()
        except urllib.error.HTTPError as refused:
            assert refused.code in {401, 500, 502}


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    """Prometheus, and for each dashboard a time at which all of it had been scraped twice."""
    tool("prometheus")
    place = tmp_path_factory.mktemp("monitoring")
    ports = {"sums-coordinator-0": find_free_port(), "answers-coordinator-0": find_free_port()}
    with ExitStack() as stack:
        gateway = stack.enter_context(processes())
        registries, count = operators_pages(place)
        targets = [Target(port=port, pod=pod) for pod, port in ports.items()]
        targets.append(Target(port=int(gateway.url.rpartition(":")[2]), pod="chat-1"))
        for place_of, registry in enumerate(registries):
            port = find_free_port()
            server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
            stack.callback(server.shutdown)
            targets.append(Target(port=port, pod=f"operator-{place_of}"))
        prometheus = stack.enter_context(scraping(place, targets, FILES / "alerts.yaml"))

        def look(*names):
            """Make them move until all have been warm for some scrapes."""
            for name in names:
                deadline = time.monotonic() + 300
                warm = f"count_over_time(({WARM[name]})[1m:1s]) >= 8"
                while not prometheus.ask(warm, time.time()):
                    assert time.monotonic() < deadline, name
                    ask_gateway(gateway)
                    count()
                    time.sleep(1)
            return dict.fromkeys(names, time.time())

        times = look("endpoints", "engines", "operator")
        with running(place / "trains", TRAINS, ports["sums-coordinator-0"]):
            times |= look("runs")
        with running(place / "answers", ANSWERS, ports["answers-coordinator-0"]):
            times |= look("batches")
        yield prometheus, times


def queries():
    for name, board in DASHBOARDS.items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield pytest.param(name, target["expr"], id=f"{name}-{panel['title']}")


def fill_in(expression):
    """As Grafana does with all of everything chosen."""
    for variable in ("namespace", "version", "run"):
        expression = expression.replace(f"${variable}", ".*")
    return expression


@pytest.mark.parametrize(("name", "expression"), queries())
def test_a_panel_has_data(looked_at, name, expression):
    prometheus, times = looked_at
    found = prometheus.ask(fill_in(expression), times[name])
    assert any(not math.isnan(value) for _, value in found) or any(
        one in expression for one in EMPTY
    )


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_choice_has_something_to_choose(looked_at, name):
    prometheus, times = looked_at
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, label = variable["query"].removeprefix("label_values(")[:-1].rsplit(", ", 1)
        found = prometheus.ask(fill_in(selector), times[name])
        assert any(labels.get(label) for labels, _ in found), variable["query"]


def test_every_alert_is_evaluated_without_an_error(looked_at):
    prometheus, _ = looked_at
    prometheus.wait_for("up")
    rules = [one for group in prometheus.get("rules")["groups"] for one in group["rules"]]
    assert rules
    assert [one for one in rules if one["health"] == "err" or one.get("lastError")] == []
