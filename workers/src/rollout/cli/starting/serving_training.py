"""``rollout serve --train``: base models on this machine for training loops that clients write, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.outcomes import print_fact
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_note
from rollout.errors import SpecError

if TYPE_CHECKING:
    from rollout.inference.gateway.keys import KeyFile
    from rollout.runs.manifest import Document
    from rollout.service.settings import TrainingServiceSettings

FullWeightsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--full-weights",
        help="Base whose models have all weights trained, whatever adapter clients ask for; they are told.",
        metavar="NAME",
    ),
]
MaxModelsOption = Annotated[
    int,
    typer.Option("--max-models", min=1, max=1024, help="Models of the book, of all keys together."),
]
ModelsInMemoryOption = Annotated[
    int,
    typer.Option(
        "--models-in-memory",
        min=1,
        help="Models in memory at once; others are on the disk until a call needs them.",
    ),
]
KEY_NAME = "train"
"""The name of the key that is made where there is none, and of the tenant that it is of."""


def serve(
    *,
    train: Annotated[
        list[str],
        typer.Option(
            "--train",
            help="Base model to train over: hf://owner/name, file:///folder, rollout://...",
            metavar="[NAME=]MODEL",
        ),
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0: any free one.")] = 8400,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Of the book of calls; default: service under ROLLOUT_HOME."),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help="Folder of the keys; default: gateway under ROLLOUT_HOME."),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
    skip_unembed: Annotated[
        bool,
        typer.Option(
            "--skip-unembed",
            help="Leave out the adapter on the unembedding that clients ask for; they are told.",
        ),
    ] = False,
    full_weights: FullWeightsOption = None,
    max_models: MaxModelsOption = 1024,
    models_in_memory: ModelsInMemoryOption = 64,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Serve models to train until Ctrl-C; started again on its folder it goes on where it was."""
    import os

    from rollout.runs.run_dir import runs_home
    from rollout.service.settings import TrainingServiceSettings

    home = runs_home(os.environ)
    settings = TrainingServiceSettings(
        bases=tuple(train),
        folder=(folder or home / "service").absolute(),
        keys=(keys or home / "gateway").absolute(),
        host=host,
        port=port,
        threads=threads,
        skip_unembed=skip_unembed,
        full_weights=tuple(full_weights or ()),
        models_max=max_models,
        models_in_memory=models_in_memory,
    )
    _serve(settings, output)


def serve_manifest(
    documents: Sequence[Document],
    *,
    resume: str | None,
    run_dir: Path | None,
    detach: bool,
    output: OutputFormat,
) -> None:
    """The same for a manifest with ``serve``: its folder is that of ``rollout serve --train``, or ``run_dir``. Raises SpecError."""
    import os

    from rollout.runs.prepare import prepare_run
    from rollout.runs.run_dir import runs_home
    from rollout.service.settings import settings_of_spec

    if len(documents) > 1:
        raise SpecError("spec.serve: a service runs until Ctrl-C; put it into a file of its own")
    if resume is not None or detach:
        raise SpecError(
            "--resume and --detach are not for a service: it goes on where its book ends, until Ctrl-C"
        )
    home = runs_home(os.environ)
    folder = (run_dir or home / "service").absolute()
    spec = prepare_run(documents[0]).spec
    if spec.serve is not None and spec.serve.api_keys:
        print_note("spec.serve.apiKeys: of a cluster; here the keys of this machine hold")
    _serve(settings_of_spec(spec, folder, (home / "gateway").absolute()), output)


def _serve(settings: TrainingServiceSettings, output: OutputFormat) -> None:
    import asyncio

    from rollout.common.logs import configure_logging
    from rollout.inference.gateway.keys import KeyFile
    from rollout.service.server import serve_training
    from rollout.serving.saved_weights import export_for_client

    configure_logging({"ROLLOUT_LOG_LEVEL": "WARNING"})
    key = _first_key(KeyFile(settings.keys))

    def listening(url: str, models: tuple[str, ...]) -> None:
        _print_service(url, models, key, output)

    asyncio.run(serve_training(settings, listening, write_saved=export_for_client))


def _first_key(keys: KeyFile) -> str | None:
    """A new key, where no valid one has this name: shown once, and good for as long as it is not revoked."""
    import time

    from rollout.inference.gateway.keys import KeyLimits
    from rollout.service.tenants.door import KEY_PREFIX

    now = time.time()
    valid = [
        one
        for one in keys.all_keys()
        if one.name == KEY_NAME and not one.revoked and (one.expires is None or now < one.expires)
    ]
    if valid:
        return None
    return KEY_PREFIX + keys.create(KEY_NAME, KeyLimits(), now=now, expires=None)


def _print_service(
    url: str, models: tuple[str, ...], key: str | None, output: OutputFormat
) -> None:
    if output is OutputFormat.json:
        print_json({"url": url, "key": key, "models": list(models)})
        return
    print_line(f"serving at {url}")
    print_fact("models", ", ".join(models))
    if key is None:
        print_fact("key", f"the one printed before; another: rollout infer keys create {KEY_NAME}")
        return
    print_fact("key", f"{key} (shown once)")
    print_line(f"export TINKER_BASE_URL={url} TINKER_API_KEY={key}")
