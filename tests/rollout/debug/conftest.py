import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from debug_kit import GRPO, build_config, record

from rollout.models.resolve import resolve_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2"
    return resolve_model(uri, cache_dir=tmp_path_factory.mktemp("models")).path


@pytest.fixture(scope="session")
def recorded_grpo(tiny_model, tmp_path_factory):
    """Five steps with anchors at 2, 4 and 5. Copied for each test: see ``grpo_run``."""
    folder = tmp_path_factory.mktemp("grpo") / "tiny-1"
    record(build_config(folder, tiny_model, GRPO))
    return folder


@pytest.fixture(scope="session")
def recorded_sft(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft") / "tiny-1"
    data = folder.with_name("data.jsonl")
    rows = [{"prompt": f"{n}+{n}" + "=" * (n % 5), "answer": str(2 * n)} for n in range(10)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = {
        "algorithm": {"sft": {"batchSize": 3, "maxLength": 12}},
        "data": {"jsonl": {"uri": data.as_uri()}},
        "optimizer": {"adamw": {"learningRate": "1e-3"}},
        "maxSteps": 5,
    }
    record(build_config(folder, tiny_model, train))
    return folder


@pytest.fixture
def grpo_run(recorded_grpo, tmp_path):
    return Path(shutil.copytree(recorded_grpo, tmp_path / "tiny-1"))


@pytest.fixture
def sft_run(recorded_sft, tmp_path):
    return Path(shutil.copytree(recorded_sft, tmp_path / "tiny-1"))
