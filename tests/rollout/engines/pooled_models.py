"""Small models of every kind that gives vectors or scores: a decoder, an encoder, a reward model, a ranker."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

TEXTS = ("3+4=", "1", "12+30=42", "a longer text than the others are, by far")


def edit_config(folder: Path, **fields: Any) -> Path:
    """Change a folder's config.json in place; None takes a field away."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: one for name, one in config.items() if one is not None}))
    return folder


def copy_model(source: Path, folder: Path, **fields: Any) -> Path:
    """A copy that may be changed."""
    shutil.copytree(source, folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return edit_config(folder, **fields)


def write_modules(folder: Path, mode: str = "mean", *, normalise: bool = True) -> Path:
    """sentence-transformers' files beside a model."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    key = {
        "mean": "pooling_mode_mean_tokens",
        "cls": "pooling_mode_cls_token",
        "last": "pooling_mode_lasttoken",
    }.get(mode, mode)
    pooling = {"word_embedding_dimension": 8, key: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def write_reward_model(causal: Path, folder: Path, **fields: Any) -> Path:
    """A causal model with a head, as a run with ``algorithm: {rm: {}}`` leaves it."""
    from safetensors.torch import save_file

    from rollout.learner.model.scorer import load_scorer
    from rollout.models.scoring import write_score_config
    from rollout.rendering.tokenizer import load_tokenizer

    copy_model(causal, folder)
    tensors = {n: p.detach().clone() for n, p in load_scorer(causal, 5).named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    write_score_config(folder, load_tokenizer(folder).pad_id)
    return edit_config(folder, **fields)


def write_encoder(folder: Path, labels: int = 0) -> Path:
    """A tiny BERT; with ``labels`` one that ranks or classifies."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *map(chr, range(33, 127))]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer.enable_truncation(8)  # as many published files have it: it must not hold here
    torch.manual_seed(3)
    sizes = {"vocab_size": len(words), "hidden_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64}
    sizes |= {"pad_token_id": 0, "num_labels": max(labels, 1)}
    config = BertConfig(**sizes)
    kind = BertForSequenceClassification if labels else BertModel
    kind(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    specials = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(specials))
    return folder
