"""The pod of an endpoint's server as a process, told by its variable."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
from gateway_processes import free_port, wait_ready
from warm import run_module, start_module

from rollout_api.serving import VARIABLE

POD = "rollout.entrypoints.serving.pod"
BODY = {"model": "chat", "messages": [{"role": "user", "content": "3+4="}], "max_tokens": 4}
WAIT_SECONDS = 60.0


class Pod:
    """One server, told by its variable."""

    def __init__(self, folder, **changes):
        self.keys, self.port = folder / "keys", free_port()
        self.keys.mkdir(exist_ok=True)
        self.log = folder / "pod.log"
        order = {
            "name": "chat",
            "uri": "rollout://tiny-adder",
            "engine": {"embedded": {}},
            "keysDir": str(self.keys),
            "workDir": str(folder / "work"),
            "port": self.port,
            "requestSeconds": 60,
            "drainSeconds": 30,
            "leaveSeconds": 2,
            **changes,
        }
        self.env = {VARIABLE: json.dumps(order)}
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        with self.log.open("wb") as log:
            out = log.fileno()
            self.process = start_module(
                POD, folder=Path.cwd(), out=out, err=out, environment=self.env
            )
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_SECONDS)

    def place(self, **changes):
        """Bring the model into the cache, as its first container does."""
        env = {**self.env, **changes}
        done = run_module(POD, "--place", folder=Path.cwd(), environment=env)
        assert done.returncode == 0, done.stderr

    def ready(self):
        wait_ready(self.url, self.process, self.log)
        return self

    def ask(self, key="", client=httpx):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"{self.url}/v1/chat/completions"
        return client.post(url, json=BODY, headers=headers, timeout=WAIT_SECONDS)

    def wait_for(self, code, key):
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := self.ask(key).status_code) != code:
            assert time.monotonic() < deadline, (code, found, self.log.read_text())
            time.sleep(0.1)
