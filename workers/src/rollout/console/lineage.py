"""Where a sample came from and went, as a row of boxes: prompt, attempt, tokens, step, version, anchor. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rollout.ledger.views import TraceView
from rollout_api.visible import visible

BOX_WIDTH, BOX_HEIGHT, GAP = 148, 58, 26
LABEL_MAX = 19

Box = tuple[str, str, str]
"""What it is, and two lines of what is known of it."""


def list_boxes(trace: TraceView) -> list[Box]:
    """The way of a sample as far as it has gone: of several attempts the last, of several consumptions the last."""
    sample, made = trace.sample, trace.trajectory
    boxes = [("prompt", trace.task_id, "" if made is None else f"ordinal {made.ordinal}")]
    if trace.attempts:
        last = trace.attempts[-1]
        boxes.append((f"attempt {last.epoch}", last.worker, f"version {last.version_step}"))
    boxes.append((f"sample {sample.sample}", f"{sample.num_tokens:,} tokens", sample.ending))
    if trace.consumptions:
        used = trace.consumptions[-1]
        boxes.append((used.kind, f"step {used.step}", f"lineage {used.lineage}"))
    if trace.version_after is not None:
        version = trace.version_after
        boxes.append((f"version {version.step}", version.digest, ""))
    if trace.anchor is not None:
        boxes.append(("anchor", trace.anchor, ""))
    return boxes


def draw_lineage(boxes: Sequence[Box]) -> str:
    """The boxes as an ``<svg>`` element; the table beside it says the same, and more."""
    width = len(boxes) * (BOX_WIDTH + GAP) - GAP
    label = escape(visible(", then ".join(" ".join(filter(None, box)) for box in boxes)))
    size = f'viewBox="0 0 {width} {BOX_HEIGHT}" width="{width}" height="{BOX_HEIGHT}"'
    parts = [f'<svg class="lineage" {size} role="img" aria-label="{label}">']
    for number, box in enumerate(boxes):
        x = number * (BOX_WIDTH + GAP)
        if number:
            parts.append(f'<path class="arrow" d="M{x - GAP + 3} 29h{GAP - 8}m-6 -5l6 5l-6 5"/>')
        parts.append(
            f'<rect class="box" x="{x + 1}" y="1" width="{BOX_WIDTH - 2}" height="{BOX_HEIGHT - 2}" rx="6"/>'
        )
        for line, (kind, text) in enumerate(zip(("what", "", ""), box, strict=True)):
            parts.append(
                f'<text class="{kind or "fact"}" x="{x + 10}" y="{18 + 16 * line}">{_shown(text)}</text>'
            )
    return "".join([*parts, "</svg>"])


def _shown(text: str) -> str:
    text = visible(text).replace("\n", " ")
    return escape(text if len(text) <= LABEL_MAX else f"{text[: LABEL_MAX - 1]}…")
