"""One model: where it stands, what it is, its curves and steps, and a stream that says when it has moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from rollout.console import live
from rollout.console.asking import reading
from rollout.console.models.counting import ModelCounts
from rollout.console.models.drawing import plan_curves
from rollout.console.models.places import COUNTS, answer_of_model, open_asked
from rollout.console.render import render
from rollout.console.views.overview import drawn
from rollout.service.calls import ALPHA
from rollout.service.reading.finding import OpenedModel, base_uri
from rollout.service.reading.folding import STEPS_SHOWN, ModelFold
from rollout.service.reading.standing import BookStanding, is_served, judge_state
from rollout.service.registry import ServiceModel

COUNT_SECONDS = 0.7
"""Of each second in which a page follows its model."""

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHead:
    """What every page of a model says first. ``counted``: calls of which steps, kinds and curves are."""

    id: str
    state: str
    words: str
    standing: BookStanding
    damage: str
    counted: int
    follows: bool


def read_head(opened: OpenedModel, standing: BookStanding, fold: ModelFold) -> ModelHead:
    """From what is known of a model."""
    served = is_served(opened.folder)
    return ModelHead(
        id=opened.model.id,
        state=judge_state(standing, fold.damage, served=served),
        words=standing.words(),
        standing=standing,
        damage=fold.damage,
        counted=fold.done,
        follows=served or not fold.is_whole(standing),
    )


def describe_adapter(model: ServiceModel) -> tuple[str, str]:
    """What of a model is trained, in a word and precisely."""
    adapter = model.adapter
    if adapter is None:
        return "full weights", "all weights"
    short, targets = f"adapter of rank {adapter.rank}", ", ".join(adapter.targets)
    return short, f"{short}, alpha {ALPHA}, on {targets}, seed {adapter.seed}"


@routes.get("/models/{model}")
async def show_model(request: web.Request) -> web.Response:
    """How one model stands."""
    counts = request.app[COUNTS]
    return await answer_of_model(request, lambda opened: make_page(opened, counts))


def make_page(opened: OpenedModel, counts: ModelCounts) -> str:
    """The page of a model. Raises LedgerError."""
    model = opened.model
    trained, adapter = describe_adapter(model)
    with counts.look(opened) as (standing, fold):
        return render(
            "model.html",
            head=read_head(opened, standing, fold),
            model=model,
            trained=trained,
            adapter=adapter,
            base_uri=base_uri(opened.book, model),
            created_at=opened.book.created_at(ServiceModel.__name__, model.id),
            identity=sorted(opened.book.identity().items()),
            service=opened.folder,
            fold=fold,
            losses=mean_losses(fold),
            steps=[*fold.first, *fold.last][::-1][:STEPS_SHOWN],
            plots=drawn(list(plan_curves(fold.curves))),
        )


def mean_losses(fold: ModelFold) -> dict[str, Any] | None:
    """The mean loss of the first and of the last steps, of as many as do not overlap; None before the first step."""
    steps = [*fold.first, *fold.last]
    if not steps:
        return None
    window = max(1, min(STEPS_SHOWN, len(steps) // 2))
    first, last = steps[:window], steps[-window:]
    return {
        "first": sum(one.loss for one in first) / window,
        "last": sum(one.loss for one in last) / window,
        "window": window,
    }


@routes.get("/models/{model}/live")
async def follow(request: web.Request) -> web.StreamResponse:
    """A line whenever the model has moved, or more of it is counted (server-sent events)."""
    return await live.follow(request, lambda: reading(request, lambda: read_mark(request)))


def read_mark(request: web.Request) -> tuple[int, str]:
    """What changes whenever there is more to see of a model. Raises SpecError, LedgerError."""
    with open_asked(request) as opened:
        standing, counted, whole = request.app[COUNTS].count_on(opened, COUNT_SECONDS)
        served = is_served(opened.folder)
    return standing.answered, f"{standing.calls} {counted} {whole} {served}"
