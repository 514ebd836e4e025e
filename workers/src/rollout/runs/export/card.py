"""The model card of an export: README.md, with front matter as the Hugging Face hub reads it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rollout.runs.export.lineage import Lineage, Measured
from rollout.runs.pipeline import LINEAGE_FILE

HUB = "hf://"


def render_card(lineage: Lineage) -> str:
    """The whole text."""
    return "\n".join([*_front_matter(lineage), *_body(lineage), ""])


def _front_matter(lineage: Lineage) -> Iterator[str]:
    yield "---"
    if lineage.base.uri.startswith(HUB):
        yield f"base_model: {json.dumps(lineage.base.uri.removeprefix(HUB))}"
        yield f"base_model_relation: {'adapter' if lineage.form == 'adapter' else 'finetune'}"
    yield f"library_name: {'peft' if lineage.form == 'adapter' else 'transformers'}"
    yield f"pipeline_tag: {'text-classification' if lineage.scores else 'text-generation'}"
    yield f"tags: [rollout, {json.dumps(lineage.algorithm.lower())}]"
    yield "---"


def _body(lineage: Lineage) -> Iterator[str]:
    yield from ("", f"# {_plain(lineage.run)}", "", _sentence(lineage), "", "## Load it", "")
    yield from ("```python", *_loading(lineage), "```", "")
    yield from ("## Lineage", "", *_table(["", ""], _facts(lineage)))
    if lineage.evaluations:
        heads = ["evaluation", "split", "metric", "value", "95 % interval", "prompts"]
        yield from ("", "## Evaluations of these weights", "")
        yield from _table(heads, (_evaluation(one) for one in lineage.evaluations))
    yield from (
        "",
        f"Digests of every tensor and file: `{LINEAGE_FILE}`; checked by `rollout model show`.",
    )


def _sentence(lineage: Lineage) -> str:
    what = {
        "full": "All weights of",
        "adapter": "A LoRA adapter for",
        "merged": "Weights of a LoRA adapter merged into",
    }[lineage.form]
    kind = ", a reward model that scores answers" if lineage.scores else ""
    steps = f"{lineage.step} step{'' if lineage.step == 1 else 's'}"
    return (
        f"{what} `{_plain(lineage.base.uri)}` after {steps} of {_plain(lineage.algorithm)}{kind}."
    )


def _loading(lineage: Lineage) -> Iterator[str]:
    kind = "SequenceClassification" if lineage.scores else "CausalLM"
    if lineage.form != "adapter":
        yield f"from transformers import AutoModelFor{kind}, AutoTokenizer"
        yield ""
        yield f'model = AutoModelFor{kind}.from_pretrained("FOLDER")'
    else:
        labels = ", num_labels=1" if lineage.scores else ""
        yield "from peft import PeftModel"
        yield f"from transformers import AutoModelFor{kind}, AutoTokenizer"
        yield ""
        yield f'base = AutoModelFor{kind}.from_pretrained("BASE"{labels})'
        yield 'model = PeftModel.from_pretrained(base, "FOLDER")'
    yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")'


def _facts(lineage: Lineage) -> Iterator[Sequence[str]]:
    revision = f" at `{_plain(lineage.base.revision)}`" if lineage.base.revision else ""
    yield "base model", f"`{_plain(lineage.base.uri)}`{revision}"
    yield "base model's files", f"`{lineage.base.digest}`"
    yield "algorithm", _plain(lineage.algorithm)
    yield "trained on", _plain(lineage.source)
    for role, digest in sorted(lineage.data.items()):
        yield f"data ({_plain(role)})", f"`{_plain(digest)}`"
    yield "run", f"{_plain(lineage.run)} (`{_plain(lineage.uid)}`)"
    yield "step", f"{lineage.step} of lineage {lineage.lineage}"
    yield "grade", _plain(lineage.grade)
    yield "spec", f"`{lineage.spec_digest}`"
    yield "hash chain", f"`{lineage.chain}`"
    yield "weights of the run", f"`{lineage.version}`"
    yield (
        "weights here",
        f"`{lineage.weights}`, {lineage.num_parameters:,} parameters in {lineage.dtype}",
    )


def _evaluation(one: Measured) -> Sequence[str]:
    interval = f"[{one.low:.4g}, {one.high:.4g}]"
    names = (_plain(text) for text in (one.name, one.split, one.metric))
    return (*names, f"{one.value:.4g}", interval, str(one.num_prompts))


def _table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _plain(text: str) -> str:
    """A name that somebody chose, as text: it opens no cell, no code and no markup."""
    kept = "".join(one for one in text if one.isprintable() and one not in "`|<>[]")
    return kept[:200]
