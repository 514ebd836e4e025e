"""What is asked of a hub that is silent may be there a minute later; what it does not have stays missing.

A real server on loopback answers in the hub's place; each case in a process of its own, as the address is read once.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from rollout import errors

pytestmark = pytest.mark.process

ASK = {
    "model": "from rollout.models.resolve import resolve_model as ask; ask('hf://nobody/nothing')",
    "file": (
        "from pathlib import Path; from rollout.data.files import find_files;"
        "find_files('hf://datasets/nobody/nothing/rows.jsonl', Path(), Path())"
    ),
    "data": (
        "from rollout.data.hugging_face import DatasetName, _load;"
        "_load(DatasetName(path='nobody/nothing'), streaming=False)"
    ),
}
MISSING = {"model": "ModelNotFound", "file": "DataNotFound", "data": "DataNotFound"}


@contextmanager
def hub(status):
    """The address of a server that always answers so; None is nobody at that address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        if status is None:
            server.server_close()
            yield address
            return
        Thread(target=server.serve_forever, daemon=True).start()
        yield address
        server.shutdown()


def error_of(what, home, **environment):
    """The kind of error that asking ends with, and its words."""
    said = f"try:\n {ASK[what]}\nexcept Exception as error: print(type(error).__name__, error)"
    found = subprocess.run(
        [sys.executable, "-c", said],
        env={**os.environ, "HF_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.splitlines()[-1].partition(" ")[::2]


@pytest.mark.parametrize("status", [None, 503, 429])
@pytest.mark.parametrize(
    "what", ["model", *(pytest.param(one, marks=pytest.mark.slow) for one in ("file", "data"))]
)
def test_a_silent_hub_may_be_asked_again(tmp_path, what, status):
    with hub(status) as address:
        kind, words = error_of(
            what, tmp_path, HF_ENDPOINT=address, HF_HUB_OFFLINE="0", HF_DATASETS_OFFLINE="0"
        )
    assert kind == "HubUnreachable", words
    assert "nobody/nothing" in words
    assert getattr(errors, kind).exit_code == 4


@pytest.mark.parametrize("what", ASK)
@pytest.mark.parametrize("offline", ["0", "1"])
def test_what_a_hub_does_not_have_is_missing_and_so_is_what_may_not_be_fetched(
    tmp_path, what, offline
):
    with hub(404) as address:
        kind, words = error_of(
            what, tmp_path, HF_ENDPOINT=address, HF_HUB_OFFLINE=offline, HF_DATASETS_OFFLINE=offline
        )
    assert kind == MISSING[what], words
    assert getattr(errors, kind).exit_code == 2
