"""Every causal language model that transformers maps, tiny and random: computed as by the learner and plainly.

``python tests/rollout/learner/zoo_kit.py`` measures all of them (some minutes) and writes the table of
docs/reference/models.md; ``zoo_kit.py qwen2 mistral`` these, and leaves what the table says of others.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES
from zoo_forms import FORMS, Gaps, compare_forms
from zoo_plain import GROUPS, VOCAB, gradient_gap, gradients, ids, logprob_gap, plain

from rollout.engines.embedded.batch import BatchSize
from rollout.engines.embedded.module import ModuleDecoder
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    build_group_row,
    prepare_model,
    token_logprobs,
)
from rollout.models.experts.families import ROUTED, expert_shape
from rollout.models.forwards import forward_of

GAP_MAX = 1e-4
"""Nats, float32."""
GRADIENT_GAP_MAX = 1e-3
"""Relative, of each tensor."""
PARAMETERS_MAX = 3_000_000

_WIDTHS = "hidden_size n_embd d_model embedding_size word_embed_proj_dim moe_intermediate_size"
_INNER = "intermediate_size ffn_dim n_inner decoder_ffn_dim encoder_ffn_dim"
_LAYERS = "num_hidden_layers n_layer n_layers num_layers"
_HEADS = (
    "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads"
)
_PLACES = "max_position_embeddings n_positions n_ctx"
_EIGHTS = (
    "head_dim sliding_window qk_rope_head_dim qk_nope_head_dim v_head_dim linear_key_head_dim "
    "linear_value_head_dim mamba_d_state state_size rotary_dim"
)
_EXPERTS = "num_local_experts num_experts n_routed_experts moe_num_experts mamba_n_heads"
_DROPOUT = "attention_dropout attn_pdrop"
SIZES = {
    **dict.fromkeys(_WIDTHS.split(), 32),
    **dict.fromkeys(_INNER.split(), 64),
    **dict.fromkeys(_LAYERS.split(), 4),
    **dict.fromkeys(_HEADS.split(), 4),
    **dict.fromkeys(_PLACES.split(), 256),
    **dict.fromkeys(_EIGHTS.split(), 8),
    **dict.fromkeys(_EXPERTS.split(), 4),
    **dict.fromkeys(_DROPOUT.split(), 0.0),
    "vocab_size": VOCAB,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "first_k_dense_replace": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "mamba_d_head": 16,
    "tie_word_embeddings": False,
}
"""Given to every configuration that knows the name."""

_LATENT = "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa longcat_flash minicpm3 youtu"
_MIXED = ["sliding_attention", "full_attention"] * 2
_CONVOLVED = ["conv", "conv", "full_attention", "conv"]
EXTRA: Mapping[str, dict] = {
    **{kind: {"num_key_value_heads": 4, "head_dim": None} for kind in _LATENT.split()},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_expand": 2},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB,
        "layer_types": _MIXED,
        "intermediate_size": [64] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "lfm2": {"layer_types": _CONVOLVED},
    "lfm2_moe": {"layer_types": _CONVOLVED},
    "mamba2": {"head_dim": 16, "n_groups": 1},
    "longcat_flash": {"num_key_value_heads": 4, "head_dim": 8},
    "zamba2": {"num_hidden_layers": None, "mamba_headdim": 16, "n_mamba_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""Where a type needs other sizes; None leaves its own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``outcome``: ``packed``, ``single``, ``refused``, ``not built`` or ``wrong``. Gaps where computed.

    ``forms``: ``right``, why there is none, or ``wrong``, by the name of each other form.
    """

    kind: str
    outcome: str
    reason: str = ""
    gap: float = 0.0
    gradient_gap: float = 0.0
    forms: Mapping[str, str] = field(default_factory=dict)


class NotBuiltError(Exception):
    """This type has no tiny model here."""


def build(kind: str) -> torch.nn.Module:
    """A tiny model of the type; equal calls give equal models."""
    try:
        return _build(kind)
    except Exception as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        raise NotBuiltError(f"{type(error).__name__}: {said.strip()[:90]}") from error


def _build(kind: str) -> torch.nn.Module:
    known = CONFIG_MAPPING[kind]
    names = set(known().to_dict()) | set(getattr(known, "attribute_map", {}))
    given = {name: value for name, value in SIZES.items() if name in names} | EXTRA.get(kind, {})
    config = known(**{name: value for name, value in given.items() if value is not None})
    if getattr(config, "attn_logit_softcapping", None):
        config._attn_implementation = "eager"  # the default, SDPA, leaves the cap out
    cls = getattr(transformers, NAMES[kind])
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
    if size > PARAMETERS_MAX:
        raise ValueError(f"{size / 1e6:.0f} M parameters: its parts for other media stay large")
    torch.manual_seed(0)
    model = cls(config).eval().float()
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=noise) * 0.2)
        model(input_ids=torch.tensor([ids(7, 4)]), use_cache=False)
    return model


def cut(model: torch.nn.Module) -> torch.Tensor:
    """The same, one sample a micro-batch."""
    rows = [
        GroupTokens(prompt_ids=group.prompt_ids, completion_ids=(completion,))
        for group in GROUPS
        for completion in group.completion_ids
    ]
    return torch.cat([token_logprobs(model, build_group_row([row])).logprobs_C for row in rows])


def decoding_gap(model: torch.nn.Module) -> float:
    """Log-probabilities of the embedded engine's decoder, two samples behind one prompt, against the plain ones."""
    prompt, samples = ids(0, 20), (ids(1, 12), ids(2, 12))
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        decoder = ModuleDecoder(Path(folder), torch.float32)
    decoder.load(model.state_dict())
    batch = decoder.open([prompt], BatchSize(group_size=2, new_tokens_max=12))
    with torch.inference_mode():
        logits = [batch.first()]
        logits += [batch.step(torch.tensor(tokens)) for tokens in zip(*samples, strict=True)]
        gaps = [
            model(input_ids=torch.tensor([prompt + one]), use_cache=False)
            .logits[0, 19:]
            .log_softmax(-1)
            - torch.stack([found[i] for found in logits]).log_softmax(-1)
            for i, one in enumerate(samples)
        ]
    return float(torch.stack(gaps).abs().max().nan_to_num(nan=torch.inf))


def replay_gap(model: torch.nn.Module, reference: torch.nn.Module) -> float:
    """The learner's log-probabilities by the routes that the engine's decoder told, against the decoder's own."""
    prompt, samples = ids(0, 20), (ids(1, 12), ids(2, 12))
    with tempfile.TemporaryDirectory() as folder:
        reference.config.save_pretrained(folder)
        decoder = ModuleDecoder(Path(folder), torch.float32)
    decoder.load(reference.state_dict())
    batch = decoder.open([prompt], BatchSize(group_size=2, new_tokens_max=12, routes=True))
    with torch.inference_mode():
        logits = [batch.first()]
        logits += [
            batch.step(torch.tensor(tokens))
            for tokens in zip(*(one[:-1] for one in samples), strict=True)
        ]
    told = torch.stack([one.log_softmax(-1) for one in logits], dim=1)
    engine = told.gather(2, torch.tensor(samples)[:, :, None]).flatten()
    form = expert_shape(model.config.to_dict()).empty()
    routes = tuple(replace(form, chosen=one.numpy().tobytes()) for one in batch.routes())
    group = GroupTokens(prompt_ids=prompt, completion_ids=samples, routes=routes)
    learner = token_logprobs(model, build_group_row([group])).logprobs_C
    return float((learner - engine).detach().abs().max().nan_to_num(nan=torch.inf))


def measure(kind: str) -> Verdict:
    """What becomes of a model of this type."""
    if kind not in CONFIG_MAPPING:
        return Verdict(kind=kind, outcome="not built", reason="transformers has no configuration")
    known = forward_of({"model_type": kind})
    if known.kind == "Refused":
        return Verdict(kind=kind, outcome="refused", reason=known.reason)
    try:
        model, reference = build(kind), build(kind)
    except NotBuiltError as error:
        return Verdict(kind=kind, outcome="not built", reason=str(error))
    known = forward_of(model.config.to_dict())
    if known.kind == "Refused":
        return Verdict(kind=kind, outcome="refused", reason=known.reason)
    prepare_model(model)
    return _compare(kind, known.kind.lower(), model, reference)


def _compare(kind: str, how: str, model: torch.nn.Module, reference: torch.nn.Module) -> Verdict:
    forms = {name: _said(one) for name, one in compare_forms(reference).items()}
    want = plain(reference)
    whole = gradients(reference, want)
    gap = slope = 0.0
    for got in (token_logprobs(model, build_group_row(GROUPS)).logprobs_C, cut(model)):
        gap = max(gap, logprob_gap(got, want))
        slope = max(slope, gradient_gap(gradients(model, got), whole))
    gap = max(gap, decoding_gap(reference))
    if kind in ROUTED:
        gap = max(gap, replay_gap(model, reference))
    right = gap <= GAP_MAX and slope <= GRADIENT_GAP_MAX
    right = right and not any(said.startswith("wrong") for said in forms.values())
    return Verdict(
        kind=kind,
        outcome=how if right else "wrong",
        reason="experts are told and replayed" if kind in ROUTED else "",
        gap=gap,
        gradient_gap=slope,
        forms=forms,
    )


def _said(form: Gaps) -> str:
    if form.gap > GAP_MAX or form.gradient_gap > GRADIENT_GAP_MAX:
        return f"wrong: {form.gap:.1g}, {form.gradient_gap:.1g}"
    return form.reason or "right"


HEAD = """# Models

Which causal language models the learner trains, and how it computes them. A tiny random model of every type
that transformers {version} maps was computed as the learner does (prompts shared, rows packed, and one sample a
micro-batch), decoded as the embedded engine does, and computed by its own plain forward, in float32:
log-probabilities within {gap:g} nats, gradients within {slope:g} of each tensor.

- **packed**: sequences share a row and samples share their prompt; windows, capped scores and sinks included.
- **single**: every sequence is computed whole by the model's own code: as right, slower, and a prompt is
  computed for every sample; the embedded engine decodes it without a cache. Layers with a state (linear attention, state spaces, convolutions), and
  whatever is not known to keep neighbours in a row apart. `train.microBatchTokens` does not join samples.
- **refused**: named by `rollout plan`; not a causal language model.
- **not built**: there is no tiny model of it here; it is computed `single`.

`rollout plan` also refuses a configuration without the sizes that its arithmetic needs (`hidden_size`,
`num_attention_heads`, `intermediate_size`, `max_position_embeddings`), such as GPT-2's and Mamba's.

Mixtures of experts of which it says **experts are told and replayed** are trained by reinforcement, too: the engine's decoder
says which experts it took, and the learner's log-probabilities by these were those of the decoder. Others are trained from
rows only (`sft`, `dpo`, `kto`); `rollout plan` refuses the rest by name.

Rotary frequencies that follow the length (`longrope`, `dynamic`): the model's context counts as what it was first
trained with, within which no sequence changes them. Every run of a packed model checks itself before its
first step (`forward_gap_nats` in its metrics): a difference beyond rounding ends it.

The other columns are other forms of the same model, on the same rows and within the same limits, held against the plain
forward of dense weights and its gradients:

- **Adapter**: a LoRA adapter on all projections, against W + (alpha / rank) B A.
- **Checkpointed**: activations computed again in the backward (`train.activationCheckpointing`).
- **Delta**: a version that was stored as a delta and read as an actor does.

**right** is within the limits, and so is **attention only**, where PEFT would read an adapter on the other projections as one of the
experts (`rollout plan` refuses `Mlp` there by name); *no projections* and *not by transformers* say why there is no such form; an empty cell was not
measured. {measured} of the {computed} types that are computed were.

Written by `python tests/rollout/learner/zoo_kit.py`; `make test-long` measures it again.

| Type | Learner | Adapter | Checkpointed | Delta |
|---|---|---|---|---|
"""
TABLE = Path(__file__).parents[3] / "docs" / "reference" / "models.md"


Row = tuple[str, ...]
"""Cells after the type's: the learner's, and one of each form."""


def row_of(verdict: Verdict) -> Row:
    """What the table says of a type."""
    reason = f": {verdict.reason}" if verdict.reason else ""
    return (f"{verdict.outcome}{reason}", *(verdict.forms.get(name, "") for name in FORMS))


def read_table() -> dict[str, Row]:
    """The table's rows by type, as they stand."""
    lines = [line.split("|") for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    return {cells[1].strip(" `"): tuple(cell.strip() for cell in cells[2:-1]) for cells in lines}


def table(rows: Mapping[str, Row]) -> str:
    """The page, with a row for each type that transformers maps; KeyError where one is missing."""
    computed = [row for row in rows.values() if row[0].startswith(("packed", "single"))]
    head = HEAD.format(
        version=transformers.__version__,
        gap=GAP_MAX,
        slope=GRADIENT_GAP_MAX,
        computed=len(computed),
        measured=sum(all(row[1:]) for row in computed),
    )
    lines = [f"| `{kind}` | {' | '.join(rows[kind])} |" for kind in NAMES]
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found = read_table()
    for name in sys.argv[1:] or NAMES:
        found[name] = row_of(measure(name))
        TABLE.write_text(table(found))
