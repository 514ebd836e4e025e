import json
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from rollout.errors import ModelNotFound, SpecError, StoreError
from rollout.models.resolve import RECIPES, find_model_folder, resolve_model
from rollout.models.uri import parse_model_uri
from rollout_api.checks import catalog


def test_a_tiny_model_is_the_same_bytes_everywhere(tmp_path):
    first = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path / "a")
    second = resolve_model("rollout://tiny-qwen2?seed=0&hidden=128", cache_dir=tmp_path / "b")

    assert first.digest == second.digest
    assert first.path.name == second.path.name
    # Pinned: another machine, numpy or library version must give the same model.
    assert first.digest.startswith("blake3:d1070605c764b2b9")


def test_a_folder_is_found_where_resolving_put_it_and_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path))
    before = find_model_folder("rollout://tiny-qwen2?seed=0")
    made = list(tmp_path.iterdir())
    path = resolve_model("rollout://tiny-qwen2").path

    assert (before, made) == (path, [])
    assert find_model_folder(path.as_uri()) == path
    assert find_model_folder("s3://nowhere/model") is None
    with pytest.raises(SpecError):
        find_model_folder("no uri")


def test_the_seed_changes_the_weights_and_nothing_else(tmp_path):
    zero = resolve_model("rollout://tiny-llama", cache_dir=tmp_path).path
    one = resolve_model("rollout://tiny-llama?seed=1", cache_dir=tmp_path).path

    assert (zero / "config.json").read_bytes() == (one / "config.json").read_bytes()
    assert (zero / "model.safetensors").read_bytes() != (one / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-llama"])
def test_a_tiny_model_has_as_many_embeddings_as_token_ids(tmp_path, name):
    from tokenizers import Tokenizer

    path = resolve_model(f"rollout://{name}", cache_dir=tmp_path).path

    config = json.loads((path / "config.json").read_text())
    assert config["vocab_size"] == Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size(
        with_added_tokens=True
    )


def test_another_user_may_read_a_cached_model(tmp_path):
    path = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path).path

    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o444}


def test_a_model_folder_is_used_where_it_lies_and_has_the_same_digest(tmp_path):
    built = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path)

    local = resolve_model(f"file://{built.path}")

    assert local.path == built.path
    assert local.digest == built.digest


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("/models/qwen", "file:///path/to/folder"),
        ("s3x://bucket/model", "expected one of hf://"),
        ("hf://", "names no model"),
        ("hf://Qwen/Qwen2.5-0.5B?x=1", "only rollout:// models"),
        ("rollout://tiny-qwen2?hidden=1&hidden=2", "twice"),
        ("rollout://tiny-gpt", "rollout://tiny-qwen2"),
        ("rollout://tiny-qwen2?depth=3", "unknown parameter 'depth'"),
        ("rollout://tiny-qwen2?hidden=many", "expected an integer 8..8192"),
        ("rollout://tiny-qwen2?hidden=-4", "expected an integer"),
        ("rollout://tiny-qwen2?hidden=100&heads=3", "even multiple of heads=3"),
        ("rollout://tiny-qwen2?heads=4&kv_heads=3", "no multiple of kv_heads=3"),
        ("file:///no/such/folder", "is not a folder"),
    ],
)
def test_a_wrong_uri_says_what_to_write_instead(tmp_path, uri, says):
    with pytest.raises(SpecError, match=says.replace("?", r"\?")):
        resolve_model(uri, cache_dir=tmp_path)


@pytest.mark.parametrize("uri", ["rollout://tiny-gpt", "file:///no/such/folder"])
def test_a_uri_that_names_nothing_is_told_from_one_that_is_wrong(tmp_path, uri):
    with pytest.raises(ModelNotFound):
        resolve_model(uri, cache_dir=tmp_path)
    with pytest.raises(SpecError) as wrong:
        resolve_model("rollout://tiny-qwen2?depth=3", cache_dir=tmp_path)
    assert not isinstance(wrong.value, ModelNotFound)


def test_a_revision_belongs_to_the_hub_only(tmp_path):
    with pytest.raises(SpecError, match="revision belongs to hf://"):
        resolve_model("rollout://tiny-qwen2", revision="main", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("missing", "says"),
    [("config.json", "has no config.json"), ("model.safetensors", "no .*safetensors weights")],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path, missing, says):
    built = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path / "cache").path
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in built.iterdir():
        if file.name != missing:
            (folder / file.name).write_bytes(file.read_bytes())

    with pytest.raises(SpecError, match=says):
        resolve_model(f"file://{folder}")


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ('{"weight_map": {"a": "model.safetensors", "b": "two.safetensors"}}', "1 of 2 files.*two"),
        ("[]", "no index of weights"),
        ("{", "no index of weights"),
    ],
)
def test_weights_that_an_index_names_and_are_not_there_are_told(tmp_path, index, says):
    built = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path / "cache").path
    folder = Path(shutil.copytree(built, tmp_path / "copy"))
    folder.chmod(0o755)
    (folder / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ModelNotFound, match=says):
        resolve_model(folder.as_uri())


def test_an_unwritable_cache_names_the_variable_to_set(tmp_path):
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(StoreError, match="ROLLOUT_CACHE"):
        resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path / "file")


def test_parameters_have_one_canonical_order():
    assert str(parse_model_uri("rollout://tiny-qwen2?seed=3&hidden=64")) == (
        "rollout://tiny-qwen2?hidden=64&seed=3"
    )


@pytest.mark.process
def test_processes_that_build_the_same_model_at_once_agree(tmp_path):
    uri = "rollout://tiny-qwen2?hidden=256"
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        models = [pool.submit(resolve_model, uri, cache_dir=tmp_path) for _ in range(6)]

    assert len({one.result().digest for one in models}) == 1
    assert [p.name.startswith(".") for p in (tmp_path / "models").iterdir()] == [False]


OFFLINE = """
from rollout.errors import SpecError
from rollout.models.resolve import RECIPES, find_model_folder, resolve_model
try:
    found = resolve_model("hf://acme/tiny", revision={revision!r})
    print("FOUND", found.path, found.revision)
except SpecError as error:
    print("REFUSED", error)
"""


def _run_offline(home: Path, revision: str | None) -> str:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", OFFLINE.format(revision=revision)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.process
def test_offline_a_hub_model_comes_from_the_cache_or_says_how_to_get_it(tmp_path):
    missing = _run_offline(tmp_path, None)
    commit = "7ae557604adf67be50417f59c2c2f167def9a775"
    repo = tmp_path / "hub" / "models--acme--tiny"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    for file in resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path).path.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    cached = _run_offline(tmp_path, None)
    other = _run_offline(tmp_path, "0" * 40)

    assert missing.startswith("REFUSED") and "hf download acme/tiny" in missing
    assert cached.split()[0] == "FOUND" and cached.split()[2] == commit
    assert other.startswith("REFUSED") and "at revision 000" in other


def test_the_registry_is_the_one_that_plans_check_against():
    assert set(RECIPES) == catalog.TINY_MODELS
