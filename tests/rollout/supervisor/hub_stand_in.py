"""A folder that stands for Hugging Face's hub (``HF_HOME``): what the GSM8K sample names, as downloads of it leave it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from rollout.models.resolve import resolve_model

DATA = Path(__file__).parents[3] / "manifests" / "samples" / "data" / "gsm8k"
TINY = "rollout://tiny-qwen2?hidden=64&layers=2&heads=2&kv_heads=1&intermediate=64&context=2048"


def place_model(home: Path, name: str, commit: str) -> Path:
    """A tiny Qwen2 under a model's name and commit; its folder."""
    owner, model = name.split("/")
    folder = home / "hub" / f"models--{owner}--{model}" / "snapshots" / commit
    folder.mkdir(parents=True)
    for file in resolve_model(TINY).path.iterdir():
        shutil.copy(file, folder / file.name)
    return folder


def place_gsm8k(home: Path) -> None:
    """``openai/gsm8k``, configuration ``main``: every question of both splits, from the copy in this repository."""
    from datasets import Dataset, DatasetInfo, Features, SplitDict, SplitInfo, Value

    folder = home / "datasets" / "openai___gsm8k" / "main" / "0.0.0" / ("0" * 40)
    folder.mkdir(parents=True)
    splits = SplitDict(dataset_name="gsm8k")
    for split in ("train", "test"):
        rows = [json.loads(line) for line in (DATA / f"{split}.jsonl").read_text().splitlines()]
        made = Dataset.from_list(rows)
        write_stream(made, folder / f"gsm8k-{split}.arrow")
        splits.add(SplitInfo(name=split, num_examples=len(rows), dataset_name="gsm8k"))
    columns = Features({"question": Value("string"), "answer": Value("string")})
    info = DatasetInfo(
        features=columns,
        splits=splits,
        dataset_name="gsm8k",
        config_name="main",
        builder_name="parquet",
        version="0.0.0",
    )
    info.write_to_directory(str(folder))


def write_stream(made: Any, file: Path) -> None:
    """A split in the form that ``datasets`` keeps."""
    import pyarrow as pa

    table = made.data.table
    with pa.ipc.new_stream(str(file), table.schema) as out:
        out.write_table(table)
