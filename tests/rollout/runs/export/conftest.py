import shutil
import sys
from pathlib import Path

import pytest

from rollout.models.resolve import resolve_model

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "objects")]


@pytest.fixture(scope="session")
def base_model(tmp_path_factory) -> Path:
    """A tiny model's folder, with a generation file of its own."""
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2"
    folder = tmp_path_factory.mktemp("base") / "model"
    shutil.copytree(resolve_model(uri, cache_dir=tmp_path_factory.mktemp("models")).path, folder)
    folder.chmod(0o755)
    (folder / ".files").unlink()
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}\n')
    return folder


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "runs"))
