"""A cloud's catalogue is asked when somebody says so: through its own client at a server of ours, into a table that keeps what it has."""

from __future__ import annotations

import json
from datetime import date

import pytest
from clouds_kit import Refusal
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.clouds import catalogues, quotes
from rollout.costs.prices import load_table
from rollout.errors import PlaceUnreachable, SpecError

NODE = "p5.48xlarge"


def product(price="98.3200000000", unit="Hrs", currency="USD", **attributes):
    """A document of the price list, in the parts that AWS's reference shows."""
    shown = {"instanceType": NODE, "vcpu": "192", "memory": "2,048 GiB", "gpu": "8", **attributes}
    dimension = {
        "unit": unit,
        "pricePerUnit": {currency: price},
        "beginRange": "0",
        "endRange": "Inf",
    }
    term = {"effectiveDate": "2026-11-01T00:00:00Z", "priceDimensions": {"A.B.C": dimension}}
    return json.dumps(
        {
            "product": {"productFamily": "Compute Instance", "attributes": shown, "sku": "A"},
            "serviceCode": "AmazonEC2",
            "terms": {"OnDemand": {"A.B": term}, "Reserved": {}},
            "version": "20261120",
        }
    )


def sku(description, nanos=31_611_000, usage="OnDemand", unit="h", region="europe-west3", tiers=1):
    rate = {
        "startUsageAmount": 0,
        "unitPrice": {"currencyCode": "EUR", "units": "0", "nanos": nanos},
    }
    expression = {"usageUnit": unit, "displayQuantity": 1, "tieredRates": [rate] * tiers}
    return {
        "name": "services/6F81-5844-456A/skus/1",
        "description": description,
        "category": {"resourceFamily": "Compute", "usageType": usage},
        "serviceRegions": [region],
        "pricingInfo": [{"effectiveTime": "2026-11-29T00:00:00Z", "pricingExpression": expression}],
    }


SKUS = [
    sku("N2 Instance Core running in Frankfurt"),
    sku("N2 Instance Ram running in Frankfurt", 4_237_000, unit="GiBy.h"),
    sku("N2 Instance Core running in Zurich", region="europe-west6"),
    sku("N2 Custom Instance Core running in Frankfurt", 9),
    sku("Spot Preemptible N2 Instance Core running in Frankfurt", 7_650_000, "Preemptible"),
    sku(
        "Spot Preemptible N2 Instance Ram running in Frankfurt", 1_026_000, "Preemptible", "GiBy.h"
    ),
    sku("Nvidia Tesla T4 GPU running in Frankfurt", 410_000_000),
]
SPOT = b"""<DescribeSpotPriceHistoryResponse><spotPriceHistorySet>
<item><instanceType>p5.48xlarge</instanceType><spotPrice>39.10</spotPrice><timestamp>2026-11-29T09:00:00Z</timestamp><availabilityZone>a</availabilityZone></item>
<item><instanceType>p5.48xlarge</instanceType><spotPrice>51.00</spotPrice><timestamp>2026-11-29T01:00:00Z</timestamp><availabilityZone>a</availabilityZone></item>
<item><instanceType>p5.48xlarge</instanceType><spotPrice>40.25</spotPrice><timestamp>2026-11-29T08:00:00Z</timestamp><availabilityZone>b</availabilityZone></item>
</spotPriceHistorySet></DescribeSpotPriceHistoryResponse>"""


def listed(*documents):
    return json.dumps({"FormatVersion": "aws_v1", "PriceList": documents}).encode()


@pytest.fixture
def amazon(cloud, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.url)
    cloud.answers.update({"GetProducts": listed(product()), "DescribeSpotPriceHistory": SPOT})
    return cloud


@pytest.fixture(scope="module")
def private_key():
    return (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


@pytest.fixture
def google(cloud, monkeypatch, tmp_path, private_key):
    """A catalogue of two pages, asked with a service account's token."""
    account = {"type": "service_account", "client_email": "a@p", "private_key": private_key}
    path = tmp_path / "key.json"
    path.write_text(json.dumps({**account, "token_uri": f"{cloud.url}/token"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setattr(catalogues, "BILLING", cloud.url)
    token = {"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}
    pages = [{"skus": SKUS[:3], "nextPageToken": "two"}, {"skus": SKUS[3:], "nextPageToken": ""}]
    cloud.answers.update(
        {"POST": json.dumps(token).encode(), "GET": [json.dumps(one).encode() for one in pages]}
    )
    return cloud


def ask(*arguments):
    return CliRunner().invoke(app, ["cloud", "prices", *arguments])


def ask_aws(*arguments):
    return ask("aws", "--region", "eu-central-1", "--instance-type", NODE, *arguments)


def test_a_node_has_the_price_and_the_size_that_the_list_says(amazon):
    said = ask_aws("--from", "2026-01-01")
    assert said.exit_code == 0, said.output
    table = load_table("prices", said.stdout)
    [price] = table.prices
    assert (price.instance_type, price.per_hour, price.capacity) == (NODE, "98.32", None)
    assert price.since == date(2026, 1, 1)
    assert price.holds == {"cpu": "192", "memory": "2048Gi", "nvidia.com/gpu": "8"}
    assert "# AWS price list" in said.stdout
    assert "asked 2" in said.stdout


def test_spot_is_the_dearest_zones_newest(amazon):
    table = load_table("prices", ask_aws("--spot").stdout)
    assert [(one.capacity, one.per_hour) for one in table.prices] == [
        (None, "98.32"),
        ("Spot", "40.25"),
    ]


def test_a_family_has_the_prices_of_cores_memory_and_devices(google):
    said = ask(
        "gcp",
        "--region",
        "europe-west3",
        "--family",
        "N2",
        "--gpu",
        "Nvidia Tesla T4",
        "--currency",
        "EUR",
    )
    assert said.exit_code == 0, said.output
    found = {one.resource: one.per_hour for one in load_table("prices", said.stdout).prices}
    assert found == {"cpu": "0.031611", "memory": "0.004237", "nvidia.com/gpu": "0.41"}


def test_spot_prices_of_google_stand_beside_the_others(google):
    said = ask("gcp", "--region", "europe-west3", "--family", "N2", "--currency", "EUR", "--spot")
    found = [
        (one.resource, one.capacity, one.per_hour) for one in load_table("p", said.stdout).prices
    ]
    assert ("cpu", "Spot", "0.00765") in found
    assert len(found) == 4


OWN = """# what we pay
currency: USD
prices:
  # the desk
  - {machine: "*", from: 2026-01-01, perHour: "0.35"}
"""


def test_a_table_keeps_all_that_it_has_and_takes_what_is_new_once(amazon, tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(OWN)
    assert ask_aws("--to", str(path)).exit_code == 0
    first = path.read_text()
    assert first.startswith(OWN)
    assert [one.chosen for one in load_table("p", first).prices] == ["machine", "instance_type"]
    assert "already" in ask_aws("--to", str(path)).stderr
    assert path.read_text() == first

    amazon.answers["GetProducts"] = listed(product("95.00"))
    assert ask_aws("--to", str(path), "--from", "2099-01-01").exit_code == 0
    assert [one.per_hour for one in load_table("p", path.read_text()).prices] == [
        "0.35",
        "98.32",
        "95",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OWN.replace("USD", "EUR"), "it is in EUR"),
        (OWN + "team: {label: team}\n", "prices has to be its last key"),
        ("prices: 7", "currency: this field is required"),
    ],
)
def test_a_table_that_cannot_take_them_stays_as_it_was(amazon, tmp_path, text, words):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    said = ask_aws("--to", str(path))
    assert isinstance(said.exception, SpecError)
    assert words in str(said.exception)
    assert path.read_text() == text


def test_two_prices_of_a_day_are_not_both_kept(amazon, tmp_path):
    path = tmp_path / "prices.yaml"
    assert ask_aws("--to", str(path)).exit_code == 0
    amazon.answers["GetProducts"] = listed(product("95.00"))
    assert "two prices" in str(ask_aws("--to", str(path)).exception)


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([], "no price"),
        ([product(), product("1.00")], "2 prices"),
        ([product(unit="Quantity")], "by Quantity"),
        ([product(currency="CNY")], "has CNY"),
        ([product("free")], "no price"),
        ([product("-1")], "no price"),
        ([product("NaN")], "no price"),
        (["[" * 9999], "an answer that is none"),
        (['{"product": {}}'], "an answer that is none"),
    ],
)
def test_what_the_list_does_not_say_plainly_is_refused(documents, words):
    with pytest.raises(SpecError, match=words):
        quotes.read_products(documents, NODE, "USD")


@pytest.mark.parametrize(
    ("skus", "words"),
    [
        ([], "no price"),
        ([sku("N2 Instance Core running in F", unit="mo")], "expected one by h"),
        ([sku("N2 Instance Core running in F", tiers=2)], "in 2 tiers"),
        (
            [sku("N2 Instance Core running in F"), sku("N2 Instance Core running in F", 1)],
            "2 prices",
        ),
    ],
)
def test_what_the_catalogue_does_not_say_plainly_is_refused(skus, words):
    page = quotes.read_page(json.dumps({"skus": skus}).encode())
    with pytest.raises(SpecError, match=words):
        quotes.read_skus(page.skus, "europe-west3", "N2", None, "EUR", spot=False)


def test_prices_in_another_currency_are_refused():
    page = quotes.read_page(json.dumps({"skus": SKUS}).encode())
    with pytest.raises(SpecError, match="priced in EUR, expected USD"):
        quotes.read_skus(page.skus, "europe-west3", "N2", None, "USD", spot=False)


def test_devices_of_others_are_no_nvidia_devices():
    quote = quotes.read_products([product(instanceType="g4ad.xlarge")], "g4ad.xlarge", "USD")
    assert "nvidia.com/gpu" not in quote.holds


@pytest.mark.parametrize(
    ("refusals", "words"),
    [
        ({"GetProducts": Refusal(400, "AccessDeniedException", "x is not authorized to perform: pricing:GetProducts")}, "pricing:GetProducts"),
        ({"GetProducts": Refusal(500, "InternalErrorException")}, "try again"),
    ],
)  # fmt: skip
def test_what_amazon_refuses_is_told_with_what_grants_it(amazon, refusals, words):
    amazon.refusals.update(refusals)
    said = ask_aws()
    assert isinstance(said.exception, PlaceUnreachable)
    assert words in str(said.exception)


def test_no_credentials_of_googles_are_told(monkeypatch):
    said = ask("gcp", "--region", "europe-west3", "--family", "N2")
    assert isinstance(said.exception, PlaceUnreachable)
    assert "gcloud auth application-default login" in str(said.exception)


def test_a_catalogue_without_an_end_is_left(google):
    page = json.dumps({"skus": [], "nextPageToken": "more"}).encode()
    google.answers["GET"] = [page] * (catalogues.PAGES_MAX + 1)
    said = ask("gcp", "--region", "europe-west3", "--family", "N2")
    assert "more than" in str(said.exception)
