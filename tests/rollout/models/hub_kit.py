"""A process that asks a hub for models, one line each, with the library as it is; and repositories to ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from random import Random

from hub_server import Repo

from rollout.models.files import digest_model

CHUNK = 4096
ASKER = f"""
import json, os, sys, time
slept = []
time.sleep = slept.append
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = {CHUNK}  # files here are small: bytes are kept in parts of this size
constants.HF_HUB_ETAG_TIMEOUT = constants.HF_HUB_DOWNLOAD_TIMEOUT = 10
import rollout.models.hub.files as files
files.SPARE_BYTES = int(os.environ.get("SPARE_BYTES", 0))
from rollout.data.files import find_files
from rollout.errors import RolloutError
from rollout.models.hub.one_file import pin_data
from rollout.models.resolve import resolve_model
from pathlib import Path
for line in sys.stdin:
    uri, revision = json.loads(line)
    slept.clear()
    try:
        if uri.startswith("pin "):
            said = {{"commit": pin_data(uri.removeprefix("pin "), revision)}}
        elif uri.startswith("load "):
            from rollout.data.hugging_face import DatasetName, open_dataset
            from rollout.data.rows.mapping import FieldMapping
            name = DatasetName(path=uri.removeprefix("load "), revision=revision)
            said = {{"rows": len(open_dataset(name, FieldMapping(prompt_field="prompt")))}}
        elif uri.startswith("hf://datasets/"):
            found = find_files(uri, Path(), Path())[0]
            said = {{"path": str(found), "text": found.read_text()}}
        else:
            found = resolve_model(uri, revision=revision)
            said = {{"path": str(found.path), "digest": found.digest, "commit": found.revision}}
    except RolloutError as error:
        said = {{"kind": type(error).__name__, "words": str(error)}}
    print(json.dumps({{**said, "slept": sum(slept)}}), flush=True)
"""


class Asker:
    """A process with its own hub cache."""

    def __init__(self, address: str, home: Path, **environment: str) -> None:
        self.cache = home / "hub"
        settings = {
            "HF_ENDPOINT": address,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
        }
        here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONPATH": here, "NO_PROXY": "*"}
        outside = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASKER],
            env={**outside, **settings, **quiet, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(home.parent / f"{home.name}.log").open("ab"),
            text=True,
        )

    def ask(self, uri: str, revision: str | None = None) -> None:
        self.process.stdin.write(json.dumps([uri, revision]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        assert line, "the process that asks has died"
        return json.loads(line)

    def fetch(self, uri: str, revision: str | None = None) -> dict:
        """What came of it: ``digest`` and ``commit``, or ``kind`` and ``words`` of the refusal."""
        self.ask(uri, revision)
        return self.answer()

    def kept(self, repo: str, digest: str) -> int:
        """Bytes of a file that lie in the cache."""
        blobs = self.cache / f"models--{repo.replace('/', '--')}" / "blobs"
        places = (blobs / digest, blobs / f"{digest}.partial")
        return max((one.stat().st_size for one in places if one.exists()), default=0)


@contextmanager
def asker(address: str, home: Path, **environment: str):
    """An Asker, ended behind the block."""
    home.mkdir(parents=True, exist_ok=True)
    one = Asker(address, home, **environment)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        one.process.stdin.close()
        one.process.stdout.close()


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def model_files(seed: int) -> dict[str, bytes]:
    """Files of a model's names and of no model's content, and one that is never to be fetched."""
    draws = Random(f"files {seed}")
    index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    return {
        "config.json": json.dumps({"seed": seed}).encode(),
        "tokenizer.json": draws.randbytes(900),
        "model.safetensors.index.json": json.dumps(index).encode(),
        SHARDS[0]: draws.randbytes(draws.randrange(20_000, 60_000)),
        SHARDS[1]: draws.randbytes(draws.randrange(20_000, 60_000)),
        "pytorch_model.bin": b"never",
    }


def model_repo(seed: int, **wrong) -> Repo:
    """A repository of two commits, ``main`` at the second, ``v1`` at the first."""
    first, second = f"{seed:039x}a", f"{seed:039x}b"
    commits = {first: model_files(2 * seed), second: model_files(2 * seed + 1)}
    return Repo(
        commits=commits,
        refs={"main": second, "v1": first},
        large=frozenset(SHARDS),
        seed=seed,
        spoilt=Counter(wrong.pop("spoilt", {})),
        **wrong,
    )


def data_repo(**wrong) -> Repo:
    """A data set of one file kept elsewhere, other rows at ``v1`` than at ``main``."""
    commits = {
        f"{nth:040x}": {"rows/train.jsonl": rows(nth), "README.md": b"# rows"} for nth in (1, 2)
    }
    first, second = commits
    refs = {"main": second, "v1": first, "refs/convert/x": first}
    return Repo(commits=commits, refs=refs, large=frozenset({"rows/train.jsonl"}), **wrong)


def rows(nth: int) -> bytes:
    """Some thousand rows."""
    return b"".join(b'{"prompt": "%d of %d"}\n' % (row, nth) for row in range(1500))


def digest_of(files: dict[str, bytes], folder: Path) -> str:
    """The digest that these files must have."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        if not name.endswith(".bin"):
            (folder / name).write_bytes(content)
    return digest_model(folder)
