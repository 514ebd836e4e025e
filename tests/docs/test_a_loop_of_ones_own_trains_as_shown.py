"""The page about loops of one's own: its command serves, and its loop, with the client as it is, learns and samples."""

import os
import shlex
import subprocess
import sys

import pytest
from docs_kit import ROOT, blocks, named_files
from serve_kit import ServedTraining

PAGE = ROOT / "docs" / "how-to" / "train-from-your-own-loop.md"


@pytest.mark.process
def test_the_loop_of_the_page_is_served_by_its_first_command(tmp_path):
    [block] = [one for one in blocks("sh") if one.page == PAGE and "serve --train" in one.text]
    (tmp_path / "loop.py").write_text(named_files(PAGE)["loop.py"])
    served = ServedTraining(home=tmp_path, base=shlex.split(block.text)[3])
    served.start()
    try:
        done = subprocess.run(
            [sys.executable, "loop.py"],
            cwd=tmp_path,
            env={**os.environ, "TINKER_BASE_URL": served.url, "TINKER_API_KEY": served.key},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        served.kill()

    assert done.returncode == 0, done.stderr
    *steps, first, second = done.stdout.splitlines()
    losses = [float(line.split()[1]) for line in steps]
    assert (len(losses), losses[-1] < losses[0]) == (10, True)
    assert all(line.startswith("'") for line in (first, second))
