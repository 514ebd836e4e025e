"""Asks clouds' price catalogues, when somebody says so and never else. Unproven on a cloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from rollout.clouds.amazon import NO_CREDENTIALS
from rollout.clouds.quotes import Quote, read_page, read_products, read_skus, read_spot
from rollout.errors import PlaceUnreachable, SpecError
from rollout.objects.retry import Absent, Refused, Transient

PRICE_LIST_REGION = "us-east-1"
"""The price list has servers in a few regions only, each with the prices of all."""
COMPUTE_ENGINE = "services/6F81-5844-456A"
"""What Google's catalogue calls Compute Engine."""
BILLING = "https://cloudbilling.googleapis.com"
PAGES_MAX = 60
PAGE_SKUS = 5000
TYPES_MAX = 50
AMAZON_FIX = (
    'grant {"Effect": "Allow", "Action": ["pricing:GetProducts", "ec2:DescribeSpotPriceHistory"], "Resource": "*"};'
    f" without credentials: {NO_CREDENTIALS}"
)
GOOGLE_FIX = "gcloud services enable cloudbilling.googleapis.com, and sign in (gcloud auth application-default login)"

T = TypeVar("T")


def ask_amazon(
    region: str, instance_types: Sequence[str], currency: str, *, spot: bool
) -> tuple[Quote, ...]:
    """Prices of types of EC2's there: on demand, with ``spot`` of Spot capacity, too. Raises SpecError and PlaceUnreachable."""
    if len(instance_types) > TYPES_MAX:
        raise SpecError(
            f"{len(instance_types)} instance types at once, expected {TYPES_MAX} at most"
        )
    if spot and currency != "USD":
        raise SpecError("--spot: EC2 tells Spot prices in USD alone")
    quotes = [read_products(_products(region, one), one, currency) for one in instance_types]
    quotes += [read_spot(_spot_prices(region, one), one) for one in instance_types if spot]
    return tuple(quotes)


def ask_google(
    region: str, family: str, gpu: str | None, currency: str, *, spot: bool
) -> tuple[Quote, ...]:
    """Prices of a family's cores and memory there, and of a device. Raises SpecError and PlaceUnreachable."""
    from rollout.objects import gcs

    skus, token = [], ""
    ask = _told("Google's billing catalogue", GOOGLE_FIX, partial(gcs.open_service, _SCOPE))
    for _ in range(PAGES_MAX):
        query = {"currencyCode": currency, "pageSize": PAGE_SKUS, "pageToken": token}
        url = f"{BILLING}/v1/{COMPUTE_ENGINE}/skus?{urlencode(query)}"
        page = read_page(_told("Google's billing catalogue", GOOGLE_FIX, partial(ask, url)))
        skus += page.skus
        token = page.next_page_token
        if not token:
            return read_skus(skus, region, family, gpu, currency, spot=spot)
    raise SpecError(f"Google's billing catalogue has more than {PAGES_MAX} pages of {PAGE_SKUS}")


_SCOPE = "cloud-billing.readonly"


def _products(region: str, instance_type: str) -> list[str]:
    from rollout.objects import s3

    client = s3.open_service("pricing", "the AWS price list", region=PRICE_LIST_REGION)
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "tenancy": "Shared",
        "capacitystatus": "Used",
    }
    filters = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()
    ]
    ask = partial(client.get_products, ServiceCode="AmazonEC2", Filters=filters)
    return list(_told("the AWS price list", AMAZON_FIX, partial(s3.call, ask))["PriceList"])


def _spot_prices(region: str, instance_type: str) -> list[tuple[str, str]]:
    """Zones with their prices, newest first."""
    from rollout.objects import s3

    client = s3.open_service("ec2", "EC2", region=region)
    ask = partial(
        client.describe_spot_price_history,
        InstanceTypes=[instance_type],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.now(UTC),
    )
    found: Any = _told("EC2's Spot prices", AMAZON_FIX, partial(s3.call, ask))["SpotPriceHistory"]
    newest = sorted(found, key=lambda one: one["Timestamp"], reverse=True)
    return [(one["AvailabilityZone"], one["SpotPrice"]) for one in newest]


def _told(whose: str, fix: str, ask: Callable[[], T]) -> T:
    """What it answers; what it refuses says what to do."""
    try:
        return ask()
    except (Refused, Absent) as error:
        raise PlaceUnreachable(f"{whose}: {error}; {fix}") from error
    except Transient as error:
        raise PlaceUnreachable(f"{whose}: {error}; open egress to it, or try again") from error
