"""A file of 100 MB goes to a bucket and comes back in a process that may not hold it in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SIZE = 120 << 20
ROOM = 100 << 20
"""Bytes that the process may take beyond what its imports took: parts of 16 MiB, four at a time, with copies."""

CODE = """
import resource, sys
from pathlib import Path
from rollout.objects.cache import Cache
from rollout.objects.places import open_bucket, parse_bucket
from rollout.objects.remote import RemoteStore

uri, endpoint, folder, source, room = sys.argv[1:6]
folder = Path(folder)
def store(name):
    return RemoteStore(open_bucket(parse_bucket(uri, endpoint=endpoint)), Cache(folder / name))
store("warm").put(b"x")
def anonymous():
    kinds = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(kinds["RssAnon"].split()[0]) * 1024
before = anonymous()
import threading, time
most, done = before, threading.Event()
def watch():
    global most
    while not done.wait(0.005):
        most = max(most, anonymous())
threading.Thread(target=watch, daemon=True).start()
digest = store("one").put_file(Path(source))
path = store("two").path(digest)
done.set()
print(digest, path, most - before)
"""


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_large_file_goes_up_and_comes_down(request, tmp_path, kind):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    bucket = request.getfixturevalue("bucket" if kind == "s3" else "google_bucket")
    fixture = request.getfixturevalue("s3_endpoint" if kind == "s3" else "google")
    endpoint = fixture if kind == "s3" else fixture.url
    words = [f"{kind}://{bucket}/runs", endpoint, str(tmp_path), str(source), str(ROOM)]
    told = subprocess.run(
        [sys.executable, "-c", CODE, *words], capture_output=True, text=True, timeout=500
    )
    assert told.returncode == 0, told.stderr
    digest, path, taken = told.stdout.split()
    assert digest == f"blake3:{blake3(Path(path).read_bytes()).hexdigest()}"
    assert Path(path).stat().st_size == SIZE
    assert int(taken) < ROOM
