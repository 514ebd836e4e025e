"""A vLLM server on the CPU is imaged while it answers, ended, and gone on with: the client that waits gets the same tokens and logprobs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Callable

import pytest

from cluster.control.ports import find_free_port
from rollout.models.resolve import resolve_model

pytestmark = [pytest.mark.vllm, pytest.mark.process, pytest.mark.slow]

TOKENS = 900
SERVER = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
FLAGS = (
    *("--host", "127.0.0.1", "--served-model-name", "policy", "--dtype", "float32"),
    *("--max-num-seqs", "1", "--max-model-len", "1024", "--enforce-eager", "--skip-tokenizer-init"),
    *(
        "--kv-cache-memory-bytes",
        str(64 << 20),
        "--generation-config",
        "vllm",
        "--enable-scale-out",
    ),
    *("--disable-uvicorn-access-log", "--no-enable-prefix-caching"),
)
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
START_SECONDS_MAX, ASK_SECONDS_MAX, ANSWER_SECONDS_MAX = 300.0, 30.0, 300.0


def generate(port: int) -> dict:
    """Tokens and logprobs of one request, by the server's own route for ids."""
    body = {
        "model": "policy",
        "token_ids": [5, 6, 7, 8],
        "sampling_params": {
            "max_tokens": TOKENS,
            "seed": 11,
            "logprobs": 1,
            "ignore_eos": True,
            "detokenize": False,
        },
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/inference/v1/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
        choice = json.loads(answer.read())["choices"][0]
    logprobs = [
        (one.get("token_id", one.get("token")), one["logprob"])
        for one in choice["logprobs"]["content"]
    ]
    return {"tokens": choice["token_ids"], "logprobs": logprobs}


def ask(port: int, path: str, body: bytes | None = None) -> str:
    """What a route answers; with a body it is posted to."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, ASK_SECONDS_MAX) as answer:
        return answer.read().decode()


def wait_until(is_so: Callable[[], bool], server, programs) -> None:
    """Until the server says so, which must not end."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError):
            if is_so():
                return
        assert server.poll() is None, programs.lines("server")[-30:]
        assert time.monotonic() < deadline, programs.lines("server")[-30:]
        time.sleep(0.05)


def is_answering(port: int) -> bool:
    """Whether a request has its turn now."""
    lines = ask(port, "/metrics").splitlines()
    running = [line for line in lines if line.startswith("vllm:num_requests_running{")]
    return any(float(line.split()[-1]) > 0 for line in running)


def test_a_request_in_flight_ends_as_if_nothing_had_been(programs):
    model, port = resolve_model("rollout://tiny-qwen2").path, find_free_port()
    command = (*SERVER, "--model", str(model), *FLAGS, "--port", str(port))
    server = programs.begin("server", "run", "--name", "actor", "--", *command, **ENVIRONMENT)
    wait_until(lambda: bool(ask(port, "/ping") or True), server, programs)
    undisturbed = generate(port)
    assert len(undisturbed["tokens"]) == TOKENS
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(generate, port)
        wait_until(lambda: is_answering(port), server, programs)
        ask(port, "/pause?mode=keep", b"")
        assert not waiting.done(), "it had its answer before the image was made"
        saved = programs.save("actor", "--stop")
        server.wait()
        again = programs.begin("again", "restore", saved["id"])
        wait_until(lambda: bool(ask(port, "/resume", b"")), again, programs)
        assert waiting.result(ANSWER_SECONDS_MAX) == undisturbed
    assert generate(port) == undisturbed, "and it serves on"
