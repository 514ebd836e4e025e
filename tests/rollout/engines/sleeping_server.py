"""A server that sleeps by vLLM 0.32's rules, behind our own version gate: what is resident, what weights hold, what is scheduled.

Its rules are those of ``v1/engine/core.py`` and ``v1/executor/abstract.py`` there. A ``harm`` is done where it says so.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from rollout_vllm.gate import VersionGate

TAGS = ("weights", "kv_cache")
BASE_WEIGHTS = "base"
RUBBISH = "rubbish"


class SleepingServer:
    """``weights`` is what memory holds; ``path`` and ``changed`` what the last update was asked for."""

    def __init__(self, harm: str = "") -> None:
        self.harm = harm
        self.asleep: set[str] = set()
        self.paused = False
        self.weights = BASE_WEIGHTS
        self.label = ""
        self.updates: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.app = VersionGate(self._serve)

    @property
    def holds_device(self) -> bool:
        return self.asleep != set(TAGS)

    async def _serve(self, scope, receive, send) -> None:
        path = scope["path"]
        query = parse_qs(scope["query_string"].decode())
        body = (await receive())["body"]
        self.asked.append(path)
        route = getattr(self, "_" + path.strip("/").replace("/", "_").replace("inference_v1_", ""))
        status, answer = route(query, json.loads(body) if body else {})
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def _sleep(self, query, _):
        level = int(query["level"][0])
        if self.harm == "sleep fails":
            return 500, {"error": "CUDA error"}
        if "weights" not in self.asleep:
            self.paused = True
            self.asleep = set(TAGS)
            self.weights = self.weights if level == 1 else RUBBISH
        return 200, {"status": "sleeping", "level": level}

    def _wake_up(self, query, _):
        if self.harm == "wake fails":
            return 500, {"error": "out of memory"}
        tags = query.get("tags")
        self.asleep -= set(TAGS if tags is None else tags)
        if self.harm == "host copy damaged" and "weights" not in self.asleep:
            self.weights += " damaged"
        if not self.asleep:
            self.paused = False
        if self.harm == "sleeps on":
            self.asleep = set(TAGS)
        return 200, {"status": "sleeping" if self.asleep else "awake", "tags": tags}

    def _pause(self, *_):
        self.paused = True
        return 200, {}

    def _resume(self, *_):
        self.paused = False
        return 200, {}

    def _start_weight_update(self, *_):
        return 200, {}

    def _update_weights(self, _, body):
        if "weights" in self.asleep:
            return 500, {"error": "illegal memory access"}
        self.updates.append(body["update_info"])
        whole = "changed" not in body["update_info"]
        known = self.weights == body["update_info"].get("base")
        self.weights = body["update_info"]["path"].split("/")[-1] if whole or known else RUBBISH
        return 200, {}

    def _finish_weight_update(self, *_):
        return 200, {}

    def _collective_rpc(self, _, body):
        if body["method"] == "compute_weight_checksums":
            return 200, {"results": [{"dp0:pp0:pcp0:tp0:w": self.weights}]}
        return 200, {"results": [{"digest": self.weights, "num_tensors": 1}]}

    def _generate(self, *_):
        assert not self.asleep
        assert not self.paused
        token = {"token_id": 5, "logprob": -0.5}
        span = {"version": self.label, "start": 0, "end": 1}
        choice = {"finish_reason": "length", "token_ids": [5], "weight_versions": [span]}
        return 200, {"choices": [{**choice, "logprobs": {"content": [token]}}]}
