"""What ``RUN`` names: a run's folder, or a model of a training service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollout.service.reading.finding import OpenedModel
    from rollout.service.reading.samples import Decode

MODEL_MARK = ":train:"
"""In the ids of models, between their session's and their number."""

ServiceOption = Annotated[
    Path | None,
    typer.Option(
        "--service",
        help="RUN is a model of the training service with this folder; unset: a run, or a model of service under ROLLOUT_HOME.",
    ),
]
BaseOption = Annotated[
    str | None,
    typer.Option(
        "--base",
        help="Where the model's base is now, if not where its service had it: a model's URI.",
    ),
]


def service_folder(service: Path | None) -> Path:
    """The folder of the service that is meant."""
    from rollout.runs.run_dir import runs_home

    return (service or runs_home(os.environ) / "service").absolute()


def find_either(given: str, service: Path | None) -> Path | OpenedModel:
    """A run's folder, or a model in its open book. Raises SpecError where there is neither, LedgerError."""
    from rollout.errors import SpecError
    from rollout.runs.run_dir import find_run

    if service is not None:
        return find_model(given, service)
    try:
        return find_run(given)
    except SpecError as error:
        found = _of_home(given)
        if found is None:
            raise SpecError(f"{error}; nor is it a model of {service_folder(None)}") from error
        return found


def find_model(given: str, service: Path | None) -> OpenedModel:
    """A model in its open book. Raises SpecError where there is none, LedgerError."""
    from rollout.errors import SpecError
    from rollout.service.reading.finding import has_book, open_model

    folder = service_folder(service)
    if not has_book(folder):
        raise SpecError(
            f"no service has kept a book in {folder}: name its --service folder, or set ROLLOUT_HOME"
        )
    found = open_model(folder, given)
    if found is None:
        raise SpecError(
            f"no model {given!r} in the book of {folder}; see: rollout runs list --service {folder}"
        )
    return found


def _of_home(given: str) -> OpenedModel | None:
    """A model of the service under ROLLOUT_HOME; a book that cannot be read has none that is not named as models are."""
    from rollout.cli.output import print_note
    from rollout.errors import LedgerError
    from rollout.service.reading.finding import has_book, open_model

    folder = service_folder(None)
    if not has_book(folder):
        return None
    try:
        return open_model(folder, given)
    except LedgerError as error:
        if MODEL_MARK in given:
            raise
        print_note(f"note: {error}")
        return None


def require_base(opened: OpenedModel, base: str | None) -> str:
    """The URI of a model's base. Raises SpecError where nobody says it."""
    from rollout.errors import SpecError
    from rollout.service.reading.finding import base_uri

    uri = base or base_uri(opened.book, opened.model)
    if uri is None:
        raise SpecError(
            f"the book does not say where the base {opened.model.base} of {opened.model.id} is: name it with --base"
        )
    return uri


def load_decoder(opened: OpenedModel, base: str | None) -> Decode | None:
    """From token ids to text; None, with a note, where the base's tokenizer cannot be had."""
    from rollout.cli.output import print_note
    from rollout.errors import RolloutError
    from rollout.models.resolve import resolve_model
    from rollout.rendering.tokenizer import load_tokenizer
    from rollout.service.reading.finding import base_uri

    uri = base or base_uri(opened.book, opened.model)
    if uri is None:
        print_note(
            f"note: the book does not say where the base {opened.model.base} is: ids without texts; name it with --base"
        )
        return None
    try:
        files = resolve_model(uri, offline=True)
        tokenizer = load_tokenizer(files.path)
    except RolloutError as error:
        print_note(f"note: ids without texts: {error}; name the base's place with --base")
        return None
    if files.digest != opened.model.base_digest:
        print_note(f"note: ids without texts: {uri} is {files.digest}, not the base of this model")
        return None
    return tokenizer.decode
