"""``rollout serve --train``: base models on this machine for training loops that clients write, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.outcomes import print_fact
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line

if TYPE_CHECKING:
    from rollout.inference.gateway.keys import KeyFile

KEY_NAME = "train"
"""The name of the key that is made where there is none, and of the tenant that it is of."""


def serve(
    *,
    train: Annotated[
        list[str],
        typer.Option(
            "--train",
            help="Base model to train adapters over: hf://owner/name, file:///folder, rollout://...",
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
    output: OutputOption = OutputFormat.text,
) -> None:
    """Serve models to train until Ctrl-C; started again on its folder it goes on where it was."""
    import asyncio
    import os

    from rollout.common.logs import configure_logging
    from rollout.inference.gateway.keys import KeyFile
    from rollout.runs.run_dir import runs_home
    from rollout.service.server import serve_training
    from rollout.service.settings import TrainingServiceSettings

    configure_logging({"ROLLOUT_LOG_LEVEL": "WARNING"})
    home = runs_home(os.environ)
    settings = TrainingServiceSettings(
        bases=tuple(train),
        folder=(folder or home / "service").absolute(),
        keys=(keys or home / "gateway").absolute(),
        host=host,
        port=port,
        threads=threads,
        skip_unembed=skip_unembed,
    )
    key = _first_key(KeyFile(settings.keys))

    def listening(url: str, models: tuple[str, ...]) -> None:
        _print_service(url, models, key, output)

    asyncio.run(serve_training(settings, listening))


def _first_key(keys: KeyFile) -> str | None:
    """A new key, where no valid one has this name: shown once, and good for as long as it is not revoked."""
    import time

    from rollout.inference.gateway.keys import KeyLimits
    from rollout.service.settings import KEY_PREFIX

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
