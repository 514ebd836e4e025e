"""The page about serving: its command serves, and its client, OpenAI's own, prints what it should."""

import os
import subprocess
import sys

import pytest
from docs_kit import ROOT, blocks, named_files
from serving_kit import serving

PAGE = ROOT / "docs" / "how-to" / "serve-a-model.md"


@pytest.mark.process
def test_the_client_of_the_page_is_served_by_its_first_command(tmp_path):
    block = next(one for one in blocks("sh") if one.page == PAGE and "infer serve" in one.text)
    words = block.text.splitlines()[0].split()[3:]
    (tmp_path / "client.py").write_text(named_files(PAGE)["client.py"])

    with serving(tmp_path, *words) as served:
        env = {**os.environ, "OPENAI_BASE_URL": served.url, "OPENAI_API_KEY": served.key}
        done = subprocess.run(
            [sys.executable, "client.py"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )

    assert done.stdout.startswith("['tiny-adder']\n")
    assert len(done.stdout.splitlines()) == 2
