"""``rollout infer keys``: who may ask what is served on this machine, for inference and for training, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_table
from rollout.errors import SpecError

if TYPE_CHECKING:
    from rollout.inference.gateway.keys import ApiKey, KeyFile

keys = typer.Typer(help="The keys of what is served on this machine.", no_args_is_help=True)
SECONDS_PER_DAY = 86_400
DAYS_MAX = 36_500
LIMITS = {
    "requests-per-minute": "requests_per_minute",
    "tokens-per-minute": "tokens_per_minute",
    "in-flight": "in_flight_max",
    "training-tokens": "training_tokens",
    "training-models": "training_models",
    "training-bytes": "training_bytes",
}
"""Options that are limits, and the field of a key that each is."""

KeysOption = Annotated[
    Path | None,
    typer.Option("--keys", help="Folder of the keys; default: gateway under ROLLOUT_HOME."),
]
KeyArgument = Annotated[str, typer.Argument(help="The public part: see `keys list`.", metavar="ID")]
RequestsOption = Annotated[
    int | None,
    typer.Option("--requests-per-minute", min=1, help="New requests, in a bucket of a minute's."),
]
TokensOption = Annotated[
    int | None,
    typer.Option("--tokens-per-minute", min=1, help="Tokens asked and answered, likewise."),
]
InFlightOption = Annotated[
    int | None, typer.Option("--in-flight", min=1, help="Requests at a time.")
]
TrainingTokensOption = Annotated[
    int | None,
    typer.Option(
        "--training-tokens",
        min=0,
        help="Of `serve --train`: tokens for good, of all keys named so.",
    ),
]
TrainingModelsOption = Annotated[
    int | None,
    typer.Option("--training-models", min=0, help="Of `serve --train`: models, likewise."),
]
TrainingBytesOption = Annotated[
    int | None,
    typer.Option(
        "--training-bytes", min=0, help="Of `serve --train`: bytes of what is saved, likewise."
    ),
]


def keys_folder_of(given: Path | None) -> Path:
    """The folder of the keys, where none is given this machine's."""
    import os

    from rollout.runs.run_dir import runs_home

    return (given or runs_home(os.environ) / "gateway").absolute()


def _key_file(given: Path | None) -> KeyFile:
    from rollout.inference.gateway.keys import KeyFile

    return KeyFile(keys_folder_of(given))


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is; for people.")],
    *,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A name that it may ask for; repeat it. Default: all."),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0, max=DAYS_MAX, help="Until it expires; default: never."),
    ] = None,
    requests: RequestsOption = None,
    tokens: TokensOption = None,
    in_flight: InFlightOption = None,
    training_tokens: TrainingTokensOption = None,
    training_models: TrainingModelsOption = None,
    training_bytes: TrainingBytesOption = None,
    folder: KeysOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Make a key and print it, this once. A limit that is not given is none."""
    import time

    from rollout.inference.gateway.keys import KeyLimits

    now = time.time()
    limits = KeyLimits(
        models=tuple(model or ()),
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        in_flight_max=in_flight,
        training_tokens=training_tokens,
        training_models=training_models,
        training_bytes=training_bytes,
    )
    expires = None if days is None else now + days * SECONDS_PER_DAY
    key = _key_file(folder).create(name, limits, now=now, expires=expires)
    if output is OutputFormat.json:
        print_json({"key": key})
    else:
        print_line(key)


@keys.command("change")
def change(
    key_id: KeyArgument,
    *,
    requests: RequestsOption = None,
    tokens: TokensOption = None,
    in_flight: InFlightOption = None,
    training_tokens: TrainingTokensOption = None,
    training_models: TrainingModelsOption = None,
    training_bytes: TrainingBytesOption = None,
    unlimited: Annotated[
        list[str] | None,
        typer.Option(
            "--unlimited",
            help=f"A limit to take away; repeat it: {', '.join(LIMITS)}.",
            metavar="LIMIT",
        ),
    ] = None,
    folder: KeysOption = None,
) -> None:
    """Give a key other limits, within a second; what it has spent stays spent, and other limits stay."""
    given = (requests, tokens, in_flight, training_tokens, training_models, training_bytes)
    changes: dict[str, int | None] = {
        field: value
        for field, value in zip(LIMITS.values(), given, strict=True)
        if value is not None
    }
    for name in unlimited or ():
        if name not in LIMITS or LIMITS[name] in changes:
            raise SpecError(
                f"--unlimited {name!r}: expected one of {', '.join(LIMITS)} that is not given beside it"
            )
        changes[LIMITS[name]] = None
    if not changes:
        raise SpecError(f"name what to change: --{', --'.join(LIMITS)} or --unlimited")
    changed = _key_file(folder).change(key_id, changes)
    print_line(f"changed {changed.id} ({changed.name}): {_limits_of(changed)}")


@keys.command("list")
def list_keys(folder: KeysOption = None, output: OutputOption = OutputFormat.text) -> None:
    """The keys, without what makes them valid."""
    import time

    rows = [_row(one, time.time()) for one in _key_file(folder).all_keys()]
    if output is OutputFormat.json:
        print_json(rows)
    elif rows:
        print_table([name.upper() for name in rows[0]], [list(row.values()) for row in rows])
    else:
        print_line("no keys; make one with: rollout infer keys create NAME")


@keys.command("revoke")
def revoke(key_id: KeyArgument, folder: KeysOption = None) -> None:
    """Revoke a key: within a second it is refused, and its open streams are cut."""
    gone = _key_file(folder).revoke(key_id)
    print_line(f"revoked {gone.id} ({gone.name})")


def _row(one: ApiKey, now: float) -> dict[str, str]:
    from datetime import UTC, datetime

    gone = one.expires is not None and one.expires <= now
    expires = "never"
    if one.expires is not None:
        expires = datetime.fromtimestamp(one.expires, UTC).isoformat(timespec="minutes")
    return {
        "id": one.id,
        "name": one.name,
        "state": "revoked" if one.revoked else "expired" if gone else "valid",
        "expires": expires,
        "models": ", ".join(one.models) or "all",
        "limits": _limits_of(one),
    }


def _limits_of(one: ApiKey) -> str:
    said = ((name, getattr(one, field)) for name, field in LIMITS.items())
    return ", ".join(f"{name} {value}" for name, value in said if value is not None) or "none"
