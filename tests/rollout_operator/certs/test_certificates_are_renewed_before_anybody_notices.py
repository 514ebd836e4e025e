"""At every hour of ten years, what the webhook serves is trusted by what the configuration holds."""

from datetime import UTC, datetime, timedelta

from rollout_operator.certs.issue import is_signed_by, names_of, new_server
from rollout_operator.certs.plan import (
    NUM_AUTHORITIES_MAX,
    parse_certificates,
    plan_certificates,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("rollout-webhook.system.svc", "rollout-webhook.system.svc.cluster.local")


def begin(now=START):
    return plan_certificates(None, NAMES, b"", now)


def trusted(served, bundle):
    return any(is_signed_by(served.server.certificate, authority) for authority in bundle)


def test_the_first_look_makes_everything():
    made = begin()

    assert names_of(made.server.certificate) == set(NAMES)
    assert trusted(made, made.bundle)
    assert len(made.bundle) == 1


def test_a_second_look_changes_nothing():
    made = begin()
    again = plan_certificates(made, NAMES, made.bundle_pem, START + timedelta(hours=1))
    assert again == made


def test_what_is_stored_reads_back_the_same():
    made = begin()
    assert parse_certificates(made.to_data()) == made


def test_a_secret_that_is_empty_or_torn_counts_as_none():
    made, other = begin().to_data(), begin().to_data()
    assert parse_certificates({}) is None
    assert parse_certificates(made | {"tls.key": other["tls.key"]}) is None
    assert parse_certificates(made | {"ca.crt": other["ca.crt"]}) is None
    assert parse_certificates(made | {"tls.crt": b"not a certificate"}) is None


def test_a_certificate_is_renewed_a_month_before_its_end_under_the_same_authority():
    made = begin()
    renewed = plan_certificates(made, NAMES, made.bundle_pem, START + timedelta(days=61))

    assert renewed.server != made.server
    assert renewed.bundle == made.bundle


def test_other_names_mean_another_certificate():
    made = begin()
    moved = plan_certificates(made, ("other.svc",), made.bundle_pem, START + timedelta(hours=1))
    assert names_of(moved.server.certificate) == {"other.svc"}


def test_a_new_authority_signs_only_once_it_is_published():
    made = begin()
    due = made.bundle[0].not_valid_after_utc - timedelta(days=170)
    recent = new_server(made.key, NAMES, due)
    made = parse_certificates(
        made.to_data() | {"tls.crt": recent.certificate_pem, "tls.key": recent.key_pem}
    )

    announced = plan_certificates(made, NAMES, made.bundle_pem, due)
    unseen = plan_certificates(announced, NAMES, made.bundle_pem, due + timedelta(days=3))
    signed = plan_certificates(announced, NAMES, announced.bundle_pem, due + timedelta(days=3))
    dropped = plan_certificates(signed, NAMES, signed.bundle_pem, due + timedelta(days=5))

    assert len(announced.bundle) == 2
    assert announced.server == made.server
    assert unseen.server == made.server
    assert is_signed_by(signed.server.certificate, announced.bundle[0])
    assert signed.bundle == announced.bundle
    assert dropped.bundle == announced.bundle[:1]


def test_the_served_certificate_is_trusted_at_every_look_of_ten_years():
    """The webhook serves what the Secret held one look ago, callers trust what was published then."""
    now, found = START, begin()
    serving, published = found, found.bundle
    authorities, servers = {found.bundle[0].serial_number}, {found.server.certificate.serial_number}
    while now < START + timedelta(days=3650):
        now += timedelta(hours=44)
        wanted = plan_certificates(found, NAMES, found.bundle_pem, now)
        assert serving.server.certificate.not_valid_after_utc > now
        if wanted != found:
            assert trusted(serving, wanted.bundle), now
            assert trusted(wanted, published), now
        assert len(wanted.bundle) <= NUM_AUTHORITIES_MAX
        serving, published, found = wanted, wanted.bundle, wanted
        authorities.add(wanted.bundle[0].serial_number)
        servers.add(wanted.server.certificate.serial_number)

    assert len(authorities) >= 6
    assert len(servers) >= 40
