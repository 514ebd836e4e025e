"""``rollout cloud prices aws|gcp``: prices of a cloud's own catalogue as lines of the table that ``rollout cost`` reads."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.output import print_line, print_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout.clouds.quotes import Quote

app = typer.Typer(
    help="Prices of clouds' catalogues, for the table of rollout cost.", no_args_is_help=True
)
PRINTED = "-"
Region = Annotated[
    str, typer.Option("--region", help="Where the nodes are, as the cloud calls it.")
]
Currency = Annotated[str, typer.Option("--currency", help="Code of ISO 4217.")]
Spot = Annotated[bool, typer.Option("--spot", help="Prices of Spot capacity, too.")]
Since = Annotated[
    datetime | None,
    typer.Option(
        "--from", help="The first day on which they hold. Unset: today.", formats=["%Y-%m-%d"]
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to", help="The table, which keeps all that it has; - prints the lines.", metavar="FILE"
    ),
]


@app.command("aws")
def aws(
    *,
    region: Region,
    instance_type: Annotated[
        list[str],
        typer.Option("--instance-type", help="A type of EC2's; may be given several times."),
    ],
    currency: Currency = "USD",
    spot: Spot = False,
    since: Since = None,
    to: To = PRINTED,
) -> None:
    """Ask the AWS price list (and EC2, for Spot) what nodes cost, and add what is new to a table of prices.

    Needs pricing:GetProducts, with --spot ec2:DescribeSpotPriceHistory. Discounts and contracts are not in it.
    """
    from rollout.clouds.catalogues import ask_amazon

    quotes = ask_amazon(region, instance_type, currency, spot=spot)
    what = "AWS price list, AmazonEC2, Linux, shared tenancy, on demand"
    also = "; Spot: EC2, the dearest zone" if spot else ""
    _keep(quotes, f"{what}, {region}{also}", currency, since, to)


@app.command("gcp")
def gcp(
    *,
    region: Region,
    family: Annotated[
        str,
        typer.Option("--family", help="A family of machines as the catalogue writes it: N2, A2."),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", help="A device as the catalogue writes it: 'Nvidia Tesla A100 80GB'."
        ),
    ] = None,
    currency: Currency = "USD",
    spot: Spot = False,
    since: Since = None,
    to: To = PRINTED,
) -> None:
    """Ask Google's billing catalogue what a core, a GiB and a device cost, and add what is new to a table of prices.

    Discounts and contracts are not in it.
    """
    from rollout.clouds.catalogues import ask_google

    quotes = ask_google(region, family, gpu, currency, spot=spot)
    source = f"Google Cloud billing catalogue, Compute Engine, {family}, {region}"
    _keep(quotes, source, currency, since, to)


def _keep(
    quotes: Sequence[Quote], source: str, currency: str, since: datetime | None, to: str
) -> None:
    from rollout.clouds.quotes import add_quotes, changed, render_quotes
    from rollout.common.atomic_files import replace_text
    from rollout.costs.prices import load_table
    from rollout.errors import SpecError

    today = datetime.now(UTC)
    first: date = (since or today).date()
    told = f"{source}; asked {today:%Y-%m-%dT%H:%MZ} by rollout cloud prices"
    if to == PRINTED:
        lines = render_quotes(quotes, first, told)
        for line in add_quotes(PRINTED, "", currency, lines, len(quotes)).splitlines():
            print_line(line)
        return
    text = _read(Path(to))
    new = changed(load_table(to, text), quotes) if text.strip() else tuple(quotes)
    if not new:
        print_note(f"{to} says these {len(quotes)} prices already")
        return
    whole = add_quotes(to, text, currency, render_quotes(new, first, told), len(new))
    try:
        replace_text(Path(to), whole)
    except OSError as error:
        raise SpecError(f"--to {to}: {error}") from error
    print_note(
        f"{to}: {len(new)} prices from {first.isoformat()} on; {len(quotes) - len(new)} were there"
    )


def _read(path: Path) -> str:
    from rollout.costs.prices import TABLE_BYTES_MAX
    from rollout.errors import SpecError

    if not path.exists():
        return ""
    try:
        if path.stat().st_size > TABLE_BYTES_MAX:
            raise SpecError(
                f"--to {path}: more than {TABLE_BYTES_MAX} bytes: that is no table of prices"
            )
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--to {path}: {error}") from error
