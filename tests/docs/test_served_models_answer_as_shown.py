"""The page about serving: its command serves, and its client, OpenAI's own, prints what it should."""

import json
import os
import subprocess
import sys

import pytest
from docs_kit import ROOT, blocks, named_files
from serving_kit import serving

PAGE = ROOT / "docs" / "how-to" / "serve-a-model.md"


def first_serving(words: str) -> list[str]:
    """The words of the page's first command that serves and has these."""
    found = [one.text.splitlines() for one in blocks("sh") if one.page == PAGE]
    line = next(one for lines in found for one in lines if "infer serve" in one and words in one)
    return line.split()[3:]


def run_client(name, served, folder):
    """What a program of the page prints."""
    env = {**os.environ, "OPENAI_BASE_URL": served.url, "OPENAI_API_KEY": served.key}
    return subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


@pytest.mark.process
def test_the_client_of_the_page_is_served_by_its_first_command(tmp_path):
    (tmp_path / "client.py").write_text(named_files(PAGE)["client.py"])
    with serving(tmp_path, *first_serving("")) as served:
        said = run_client("client.py", served, tmp_path)
    assert said.startswith("['tiny-adder']\n")
    assert len(said.splitlines()) == 2


@pytest.mark.process
def test_the_batch_of_the_page_is_answered(tmp_path):
    for name in ("batch.py", "requests.jsonl"):
        (tmp_path / name).write_text(named_files(PAGE)[name])
    words = [one.replace("~", str(tmp_path)) for one in first_serving("--files")]
    with serving(tmp_path, *words) as served:
        status, answer = run_client("batch.py", served, tmp_path).splitlines()[:2]
    assert status.startswith("completed ")
    assert json.loads(answer)["custom_id"] == "a"


@pytest.mark.process
def test_the_vectors_of_the_page_are_given(tmp_path):
    (tmp_path / "vectors.py").write_text(named_files(PAGE)["vectors.py"])
    with serving(tmp_path, *first_serving("--task embed")) as served:
        size, tokens = run_client("vectors.py", served, tmp_path).split()
    assert int(size) > 8
    assert int(tokens) > 2
