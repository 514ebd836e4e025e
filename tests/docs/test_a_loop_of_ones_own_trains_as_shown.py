"""The page about loops of one's own: its command serves, and its loop learns and samples, with the client as it is and with ours."""

import os
import shlex
import subprocess
import sys

import pytest
from docs_kit import ROOT, blocks, named_files
from serve_kit import ServedTraining

pytestmark = pytest.mark.process
PAGE = ROOT / "docs" / "how-to" / "train-from-your-own-loop.md"
THEIRS = "import tinker\nfrom tinker import types\n"
OURS = "import rollout.client as tinker\nfrom rollout.client import types\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    block, *_ = [one for one in blocks("sh") if one.page == PAGE and "serve --train" in one.text]
    found = ServedTraining(home=tmp_path_factory.mktemp("served"), base=shlex.split(block.text)[3])
    found.start()
    yield found
    found.kill()


@pytest.mark.parametrize("lines", [THEIRS, OURS], ids=["tinker", "rollout.client"])
def test_the_loop_of_the_page_is_served_by_its_first_command(served, tmp_path, lines):
    shown = named_files(PAGE)["loop.py"]
    assert THEIRS in shown
    (tmp_path / "loop.py").write_text(shown.replace(THEIRS, lines))
    done = subprocess.run(
        [sys.executable, "loop.py"],
        cwd=tmp_path,
        env={**os.environ, "TINKER_BASE_URL": served.url, "TINKER_API_KEY": served.key},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    *steps, first, second = done.stdout.splitlines()
    losses = [float(line.split()[1]) for line in steps]
    assert (len(losses), losses[-1] < losses[0]) == (10, True)
    assert all(line.startswith("'") for line in (first, second))
