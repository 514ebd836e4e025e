"""Pages of what lies in a run's pods: its steps, and what it was trained on. Read by the run's coordinator, as the viewer.

The console has no right to look into a pod. It runs ``rollout debug page`` there with the viewer's own token, as that person's
``rollout runs samples --cluster`` would; who may not ``create pods/exec`` sees nothing of it. What comes back was made in a namespace
that others edit: it is read by its types and shown as text.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from aiohttp import web
from jinja2 import TemplateError

from rollout.cluster.coordinator import RUN_FOLDER, ask_coordinator
from rollout.console.asking import answer, choice_of, number_of, page_of, reading
from rollout.console.cluster.door import TOKEN, VIEWER, require
from rollout.console.cluster.pages import run_of
from rollout.console.cluster.reviews import reads_inside
from rollout.console.lineage import draw_lineage
from rollout.console.render import render
from rollout.console.views.overview import drawn
from rollout.console.views.remote import (
    CurvesAnswer,
    EvaluationsAnswer,
    NoQuestion,
    SampleQuestion,
    SamplesAnswer,
    SampleShown,
    StepQuestion,
    StepsQuestion,
    TokensAnswer,
    TokensQuestion,
)
from rollout.console.views.sampling import query_of, sample_of
from rollout.console.views.steps import StepPage, StepsPage
from rollout.console.views.tokens import HEATS, ROWS, TOKENS_MAX, WINDOW
from rollout.errors import KubeError, SpecError
from rollout.report.plots import Plot

T = TypeVar("T")
SAID_CHARACTERS_MAX = 2000
UNFIT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, TemplateError)
"""What drawing raises for values that only look like ours."""
NOT_THERE = 2
"""Exit code of a command that was asked for what is not there."""

routes = web.RouteTableDef()


@routes.get("/runs/{namespace}/{run}/steps")
async def list_steps(request: web.Request) -> web.Response:
    """The steps, the newest first, a page at a time."""
    found = await ask(request, "steps", StepsQuestion(page=page_of(request)), StepsPage)
    return await show(request, "cluster/steps.html", found=found)


@routes.get(r"/runs/{namespace}/{run}/steps/{step:\d{1,10}}")
async def show_step(request: web.Request) -> web.Response:
    """One step."""
    question = StepQuestion(step=int(request.match_info["step"]), page=page_of(request))
    found = await ask(request, "step", question, StepPage)
    return await show(request, "cluster/step.html", found=found)


@routes.get("/runs/{namespace}/{run}/samples")
async def show_samples(request: web.Request) -> web.Response:
    """A page of what the run was trained on."""
    told = await ask(request, "samples", query_of(request), SamplesAnswer)
    return await show(request, "cluster/samples.html", found=told.found, offline=told.offline)


@routes.get("/runs/{namespace}/{run}/sample")
async def show_sample(request: web.Request) -> web.Response:
    """One sample: what was asked, answered and given for it, and where it came from."""
    task, number = sample_of(request)
    trace = await ask(request, "sample", SampleQuestion(task=task, sample=number), SampleShown)
    lineage = draw_lineage(trace.boxes)
    return await show(request, "cluster/sample.html", trace=trace, lineage=lineage)


@routes.get("/runs/{namespace}/{run}/tokens")
async def show_tokens(request: web.Request) -> web.Response:
    """A window of one sample's tokens, as text or as a table."""
    (task, number), start = sample_of(request), number_of(request, "from", most=TOKENS_MAX) or 0
    form = choice_of(request, "as", ("text", "table"))
    size = WINDOW if form == "text" else ROWS
    question = TokensQuestion(task=task, sample=number, start=start, size=size)
    told = await ask(request, "tokens", question, TokensAnswer)
    return await show(
        request,
        "cluster/tokens.html",
        task=task,
        sample=number,
        found=told.found,
        form=form,
        window=size,
        heats=HEATS,
    )


@routes.get("/runs/{namespace}/{run}/curves")
async def show_curves(request: web.Request) -> web.Response:
    """Every curve of a run, drawn here."""
    told = await ask(request, "curves", NoQuestion(), CurvesAnswer)
    plots = await reading(request, lambda: drawn_safely(list(told.plots), request))
    return await show(request, "cluster/curves.html", plots=plots)


@routes.get("/runs/{namespace}/{run}/evaluations")
async def show_evaluations(request: web.Request) -> web.Response:
    """What was measured."""
    told = await ask(request, "evaluations", NoQuestion(), EvaluationsAnswer)
    return await show(
        request, "cluster/evaluations.html", rows=told.rows, best=told.best, versus=False
    )


def drawn_safely(
    plots: list[Plot], request: web.Request
) -> list[tuple[Plot, str, list[list[str]]]]:
    """The plots with their drawings. Raises KubeError for series that are none."""
    try:
        return drawn(plots)
    except UNFIT as error:
        raise misfit(request.match_info["run"], error) from error


async def show(request: web.Request, template: str, **values: Any) -> web.Response:
    """A page of a run, under its namespace and name."""
    run = f"{request.match_info['namespace']}/{request.match_info['run']}"
    viewer = request[VIEWER].name

    def make() -> str:
        try:
            return render(template, run=run, viewer=viewer, **values)
        except UNFIT as error:
            raise misfit(run, error) from error

    return await answer(request, make)


async def ask(request: web.Request, page: str, question: object, kind: type[T]) -> T:
    """A page as the run's coordinator reads it. Raises HTTPForbidden, ObjectNotFound, SpecError, KubeError."""
    cluster, name = await run_of(request)
    await require(request, reads_inside(cluster.namespace))
    asked = msgspec.json.encode(question).decode()
    command = ["debug", "page", RUN_FOLDER, page, "--question", asked]
    token = request[TOKEN]

    def read() -> T:
        done = ask_coordinator(cluster.as_holder(token), name, command)
        if done.code:
            said = done.stderr.strip()[-SAID_CHARACTERS_MAX:]
            kind_of_error = SpecError if done.code == NOT_THERE else KubeError
            raise kind_of_error(
                f"the coordinator of {name} says: {said or f'exit code {done.code}'}"
            )
        return read_answer(done.stdout, name, kind)

    return await reading(request, read)


def read_answer(text: str, name: str, kind: type[T]) -> T:
    """What a coordinator answered. Raises KubeError for anything else."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise misfit(name, error) from error


def misfit(name: str, error: Exception) -> KubeError:
    """An answer that no coordinator of this version gives."""
    return KubeError(
        f"the coordinator of {name} did not answer as this console's version does: {error}; its image is that of"
        " another version, or was changed"
    )
