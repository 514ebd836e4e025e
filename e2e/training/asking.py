"""A client of an endpoint inside the cluster: asks again and again by the endpoint's address, and writes down what it was told."""

import json
from typing import Any

from cluster.kubectl import Kubectl
from cluster.nodes import containers

NAME = "client"
SCRIPT = """
import json, sys, time
import openai
url, key, model, form, seconds = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=float(seconds))
turn = 0
while True:
    told, turn = {}, turn + 1
    try:
        if form == "chat":
            asked = {"messages": [{"role": "user", "content": "3+4="}]}
            create = client.chat.completions.with_raw_response.create
        else:
            asked, create = {"prompt": "3+4="}, client.completions.with_raw_response.create
        raw = create(model=model, max_tokens=4, user=f"u{turn % 40}", **asked)
        told = {"code": raw.status_code, "user": turn % 40, "digest": raw.headers["x-rollout-weights-digest"]}
        told["answers"], told["model"] = len(raw.parse().choices), raw.parse().model
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(told), flush=True)
    time.sleep(0.05)
"""
ONCE = """
import sys, urllib.request, urllib.error
url, key = sys.argv[1:]
body = b'{"model": "chat", "messages": [{"role": "user", "content": "3+4="}], "max_tokens": 4}'
headers = {"Content-Type": "application/json"} | ({"Authorization": "Bearer " + key} if key else {})
try:
    print(urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, headers), timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
PYTHON = f"{containers.ENVIRONMENT}/bin/python"


def build_client(
    url: str, key: str, model: str, form: str = "chat", seconds: int = 60
) -> dict[str, Any]:
    """The pod. ``form``: ``chat``, or ``text`` for a model without a template of chats; ``seconds``: for an answer."""
    volumes, mounts = containers.build_environment_mounts()
    container = {
        "name": NAME,
        "image": containers.WORKER,
        "imagePullPolicy": "Never",
        "command": [PYTHON, "-u", "-c", SCRIPT, url, key, model, form, str(seconds)],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        ],
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "labels": {"app": "client"}},
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
        },
    }


def read_told(kubectl: Kubectl) -> list[dict[str, Any]]:
    """Everything that the client was told so far, the oldest first; of a last line only what is whole."""
    lines = kubectl.said(NAME).splitlines()
    return [json.loads(one) for one in lines if one.startswith("{") and one.endswith("}")]


def ask_once(kubectl: Kubectl, url: str, key: str = "") -> int:
    """The code of one answer, asked from the client's pod."""
    return int(kubectl("exec", NAME, "--", PYTHON, "-c", ONCE, url, key).strip())
