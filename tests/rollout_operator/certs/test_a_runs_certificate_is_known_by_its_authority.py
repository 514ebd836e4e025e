"""A run's own authority signs its coordinator's certificate; only the latter is renewed."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from rollout_operator.run.certificate import issue, must_renew, renew
from rollout_operator.run.render.order import coordinator_host

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def server(files):
    return x509.load_pem_x509_certificates(files["tls.crt"].encode())[0]


def names(files):
    found = server(files).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(found.value.get_values_for_type(x509.DNSName))


def test_the_name_that_workers_call_is_in_the_certificate():
    files = issue("run", "ns", NOW).files
    assert coordinator_host("run", "ns") in names(files)
    assert {"run-coordinator.ns.svc", "run-coordinator"} <= names(files)


def test_the_authority_signed_it_and_python_takes_both(tmp_path):
    files = issue("run", "ns", datetime.now(UTC)).files
    authority = x509.load_pem_x509_certificate(files["ca.crt"].encode())
    server(files).verify_directly_issued_by(authority)
    chain = tmp_path / "chain"
    chain.write_text(files["tls.crt"] + files["tls.key"])
    ssl.create_default_context(cadata=files["ca.crt"])
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain)


def test_a_renewal_keeps_the_authority():
    first = issue("run", "ns", NOW)
    later = first.not_after - timedelta(days=20)
    assert must_renew(first.not_after, later)
    assert not must_renew(first.not_after, NOW)
    second = renew("run", "ns", later, first.files)
    assert second.files["ca.crt"] == first.files["ca.crt"]
    assert second.files["tls.key"] != first.files["tls.key"]
    assert second.not_after > first.not_after


def test_keys_of_somebody_else_are_not_renewed():
    with pytest.raises(ValueError):
        renew("run", "ns", NOW, {"ca.crt": "x", "ca.key": "y"})
