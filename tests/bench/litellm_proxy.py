"""LiteLLM's proxy as its own page says to start it, before a simulated engine at a port: it takes no Unix sockets. Pinned, in the user's cache.

It checks a key of its own, as ours does; no database, no logs of requests, one worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gateway_processes import ENGINE, Running, free_port, start_python

sys.path.append(str(Path(__file__).parents[1]))

from pinned_packages import LITELLM, installed

START_SECONDS = 500.0
"""It imports for minutes on a busy machine."""
KEY = "sk-" + "0" * 32
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}


@contextmanager
def litellm_proxy(running: Running, core: int) -> Iterator[Running]:
    """The proxy on the same core, its engine on the others. Raises RuntimeError where its packages cannot be had."""
    folder, why = installed(LITELLM)
    if folder is None:
        raise RuntimeError(f"no figures beside LiteLLM: {why}")
    engine_port, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        started = [start_python([str(ENGINE), f"127.0.0.1:{engine_port}"], place / "engine.log")]
        try:
            os.sched_setaffinity(started[0].pid, os.sched_getaffinity(0))
            started.append(_start(place, folder, engine_port, port))
            os.sched_setaffinity(started[1].pid, {core})
            url = f"http://127.0.0.1:{port}"
            _wait(url, started[1], place / "proxy.log")
            yield replace(running, url=url, gateway=started[1], key=KEY)
        finally:
            for one in started:
                one.kill()
                one.wait()


def _start(place: Path, folder: Path, engine_port: int, port: int) -> subprocess.Popen[bytes]:
    engine = {"model": "openai/m", "api_base": f"http://127.0.0.1:{engine_port}/v1", "api_key": "-"}
    config = {
        "model_list": [{"model_name": "m", "litellm_params": engine}],
        "litellm_settings": {"telemetry": False},
        "general_settings": {"master_key": KEY},
    }
    (place / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    words = ["--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (place / "proxy.log").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "litellm.proxy.proxy_cli", *words, "--num_workers", "1"],
            cwd=place,
            env={**os.environ, **QUIET, "PYTHONPATH": str(folder)},
            stdout=out,
            stderr=out,
        )


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url + "/health/liveliness", timeout=30):
                return
        except OSError:
            time.sleep(0.2)
    said = log.read_text()[-4000:]
    raise RuntimeError(f"LiteLLM's proxy did not start within {START_SECONDS:g} s: {said}")
