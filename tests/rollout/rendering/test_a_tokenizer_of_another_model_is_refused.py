"""A folder whose tokenizer is another model's is told before anything is trained on it."""

import json
import shutil
from pathlib import Path

import pytest

from rollout.errors import SpecError
from rollout.models.resolve import resolve_model
from rollout.rendering import build_renderer


@pytest.fixture
def folder(tmp_path):
    built = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path / "cache").path
    copy = Path(shutil.copytree(built, tmp_path / "model", copy_function=shutil.copyfile))
    copy.chmod(0o755)
    return copy


def change(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return config


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"vocab_size": 200}, "is beyond the model's 200 embeddings"),
        ({"vocab_size": 151936, "eos_token_id": 151645}, "ends with token 151645"),
        ({"vocab_size": 151936, "eos_token_id": [2, 151645]}, "ends with token 151645"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(folder, values, says):
    change(folder, **values)

    with pytest.raises(SpecError, match="its tokenizer does not match it") as refused:
        build_renderer(folder)
    assert says in str(refused.value) and str(folder) in str(refused.value)
    assert "take the tokenizer files of this very model" in str(refused.value)


@pytest.mark.parametrize(
    "values", [{"vocab_size": 151936}, {"eos_token_id": None}, {"vocab_size": None}]
)
def test_more_embeddings_than_tokens_and_a_folder_without_sizes_are_taken(folder, values):
    change(folder, **values)

    assert build_renderer(folder).stop_token_ids
