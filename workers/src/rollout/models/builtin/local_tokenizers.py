"""Tokenizers made here, with no download: bytes (any text) or a fixed alphabet (one id per character).

Writes ``tokenizer.json``, ``tokenizer_config.json`` and, where there is one, ``chat_template.jinja``:
what transformers and vLLM read. ``len(tokenizer)`` is exactly the number of ids, specials last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
LLAMA3 = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}"
    "{{- message['content'] | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerStyle:
    """Special tokens in id order (after the plain ones) and the chat template that uses them.

    ``eos`` ends an assistant turn; ``pad`` fills batches; ``bos`` is None where the family has none.
    """

    specials: tuple[str, ...]
    eos: str
    pad: str
    bos: str | None = None
    chat_template: str | None = None


QWEN_STYLE = TokenizerStyle(
    specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    eos="<|im_end|>",
    pad="<|endoftext|>",
    chat_template=CHATML,
)
LLAMA_STYLE = TokenizerStyle(
    specials=(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    pad="<|end_of_text|>",
    chat_template=LLAMA3,
)
PLAIN_STYLE = TokenizerStyle(specials=("<pad>", "<eos>"), eos="<eos>", pad="<pad>")
"""No chat markup at all: prompt text, completion, end."""


def build_byte_tokenizer(style: TokenizerStyle) -> Tokenizer:
    """One id per byte (256), then the specials. Ids are not byte values."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _add_specials(tokenizer, style)


def build_character_tokenizer(alphabet: Sequence[str], style: TokenizerStyle) -> Tokenizer:
    """One id per character of ``alphabet`` in its order, then the specials.

    Text with another character encodes to fewer ids than characters: the caller checks round trips.
    """
    if len(set(alphabet)) != len(alphabet) or any(len(c) != 1 for c in alphabet):
        raise ValueError("alphabet: expected distinct single characters")
    tokenizer = Tokenizer(models.WordLevel(vocab={c: i for i, c in enumerate(alphabet)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _add_specials(tokenizer, style)


def build_word_tokenizer(
    alphabet: Sequence[str], words: Sequence[str], marks: Sequence[str], style: TokenizerStyle
) -> Tokenizer:
    """One id per character of ``alphabet`` and per word of ``words``, then ``marks``, then the specials.

    Where several words begin, the first of ``words`` is taken. ``marks`` are recognised wherever they stand, and
    are text (``<tool_call>``).
    """
    vocabulary = {text: i for i, text in enumerate((*alphabet, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary))
    pieces = "|".join(re.escape(word) for word in words)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{pieces}|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return _add_specials(tokenizer, style)


def _add_specials(tokenizer: Tokenizer, style: TokenizerStyle) -> Tokenizer:
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in style.specials]
    )
    return tokenizer


def write_tokenizer(
    directory: Path, tokenizer: Tokenizer, style: TokenizerStyle, context: int
) -> None:
    """Write the tokenizer's files; ``context`` is the model's longest sequence in tokens."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": style.bos,
        "eos_token": style.eos,
        "pad_token": style.pad,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    if style.chat_template is not None:
        (directory / "chat_template.jinja").write_text(style.chat_template)
