"""Models and data in buckets and on the web: copied to this machine whole, gone on with, and not copied twice."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import gcs_kit
import objects_kit as kit
import pytest
import web_kit
from blake3 import blake3

from rollout.data.build import build_source
from rollout.data.files import find_files
from rollout.errors import DataNotFound, ModelNotFound, PlaceUnreachable
from rollout.models.resolve import resolve_model
from rollout.objects import far_files
from rollout.objects.retry import Patience
from rollout.runs.fetching.sources import fetch_sources
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.run import RolloutRunSpec

ROWS = b"".join(json.dumps({"prompt": f"{n}?", "answer": n}).encode() + b"\n" for n in range(400))
DIGEST = f"blake3:{blake3(ROWS).hexdigest()}"


def spec_of(model="rollout://tiny-adder", data=None, digest=None, **storage):
    rows = {"uri": data or "/none.jsonl"} | ({"digest": digest} if digest else {})
    train = {"algorithm": {"sft": {}}, "data": {"jsonl": rows}, "maxSteps": 1}
    more = {"storage": storage} if storage else {}
    return RolloutRunSpec.model_validate({"model": {"uri": model}, "train": train, **more})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(far_files, "RANGE_BYTES", 4000)
    quick = Patience(tries_max=4, pause_first_seconds=0.01, pause_max_seconds=0.02)
    monkeypatch.setattr(far_files, "Patience", lambda: quick)
    return tmp_path / "cache"


@pytest.fixture
def proxy(google, monkeypatch):
    with kit.proxy_before(google.url) as made:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", made.url)
        yield made


@pytest.fixture
def put(google, google_bucket):
    def store(name, data):
        google.objects[google_bucket, name] = gcs_kit.Stored(name, data, {})
        return f"gs://{google_bucket}/{name}"

    return store


@pytest.fixture
def web(tmp_path, monkeypatch):
    with web_kit.web_server(tmp_path) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        yield server


def read(uri, cache):
    return find_files(uri, cache, cache)[0].read_bytes()


def downloads(proxy):
    return [path for method, path in proxy.seen if method == "GET" and "alt=media" in path]


def test_rows_of_a_bucket_are_read_like_those_of_a_file(put, proxy, cache):
    uri = put("data/rows.jsonl", ROWS)
    fetch_sources(spec_of(data=uri))
    source = build_source(Data.model_validate({"jsonl": {"uri": uri}}))
    assert (len(source), source.digest) == (400, DIGEST)
    assert len(downloads(proxy)) == -(-len(ROWS) // 4000)


def test_packed_rows_are_unpacked(put, proxy, cache):
    import gzip

    uri = put("data/rows.jsonl.gz", gzip.compress(ROWS))
    fetch_sources(spec_of(data=uri))
    assert build_source(Data.model_validate({"jsonl": {"uri": uri}})).digest == DIGEST


def test_what_has_not_changed_is_not_copied_again(put, proxy, cache):
    uri = put("rows.jsonl", ROWS)
    fetch_sources(spec_of(data=uri))
    proxy.seen.clear()
    fetch_sources(spec_of(data=uri))
    assert downloads(proxy) == []
    put("rows.jsonl", ROWS[:100])
    fetch_sources(spec_of(data=uri))
    assert read(uri, cache) == ROWS[:100]


def test_a_copy_that_was_damaged_is_made_again(put, proxy, cache):
    uri = put("rows.jsonl", ROWS)
    fetch_sources(spec_of(data=uri))
    copy = find_files(uri, cache, cache)[0]
    copy.chmod(0o644)
    copy.write_bytes(b"x" + ROWS[1:])
    fetch_sources(spec_of(data=uri))
    assert read(uri, cache) == ROWS


def test_a_copy_that_broke_off_is_gone_on_with_by_another_process(put, proxy, cache):
    uri = put("rows.jsonl", ROWS)
    proxy.next(lambda asked, pass_on: pass_on(), "GET", times=3)
    proxy.next(kit.says(503, "SlowDown"), "GET", times=4)
    with pytest.raises(PlaceUnreachable, match=r"spec\.train\.data\.jsonl\.uri.*503"):
        fetch_sources(spec_of(data=uri))
    before = len(downloads(proxy))
    fetch_sources(spec_of(data=uri))
    assert read(uri, cache) == ROWS
    assert before > 0
    assert len(downloads(proxy)) - before < -(-len(ROWS) // 4000)


@pytest.mark.parametrize("fault", [kit.cut, kit.truncated])
def test_an_answer_that_breaks_is_gone_on_with(put, proxy, cache, fault):
    uri = put("rows.jsonl", ROWS)
    proxy.next(lambda asked, pass_on: pass_on(), "GET", times=2)
    proxy.next(fault, "GET")
    fetch_sources(spec_of(data=uri))
    assert read(uri, cache) == ROWS


def test_a_file_that_changes_while_it_is_read_is_read_anew(put, proxy, cache):
    uri = put("rows.jsonl", ROWS)

    def changes(asked, pass_on):
        put("rows.jsonl", ROWS[::-1])
        return pass_on()

    proxy.next(lambda asked, pass_on: pass_on(), "GET", times=2)
    proxy.next(changes, "GET")
    fetch_sources(spec_of(data=uri))
    assert read(uri, cache) == ROWS[::-1]


def test_many_that_fetch_at_once_find_one_copy(put, proxy, cache):
    uri = put("rows.jsonl", ROWS)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch_sources(spec_of(data=uri)), range(4)))
    assert read(uri, cache) == ROWS
    assert len(downloads(proxy)) == -(-len(ROWS) // 4000)


FILES = {
    "config.json": b'{"architectures": []}',
    "model-1.safetensors": os.urandom(9000),
    "model-2.safetensors": os.urandom(5000),
    "tokenizer.json": b"{}",
}


def put_model(put, prefix="models/tiny", **more):
    for name, data in {**FILES, **more}.items():
        uri = put(f"{prefix}/{name}", data)
    return uri.removesuffix(f"/{name}")


def test_a_model_of_a_bucket_is_a_folder_of_its_files(put, proxy, cache):
    uri = put_model(put, **{"notes.bin": b"x", "old/config.json": b"{}"})
    fetch_sources(spec_of(model=uri))
    found = resolve_model(uri)
    assert {path.name: path.read_bytes() for path in found.path.iterdir()} == FILES
    assert found.digest == f"blake3:{found.path.name}"
    assert found.uri == uri
    proxy.seen.clear()
    fetch_sources(spec_of(model=uri))
    assert downloads(proxy) == []


def test_a_model_whose_weights_were_replaced_is_another_model(put, proxy, cache):
    uri = put_model(put)
    fetch_sources(spec_of(model=uri))
    before = resolve_model(uri)
    put("models/tiny/model-2.safetensors", b"other")
    fetch_sources(spec_of(model=uri))
    after = resolve_model(uri)
    assert after.digest != before.digest
    assert (before.path / "model-2.safetensors").read_bytes() == FILES["model-2.safetensors"]


def test_a_copy_of_a_model_that_was_damaged_is_made_again(put, proxy, cache):
    uri = put_model(put)
    fetch_sources(spec_of(model=uri))
    weights = resolve_model(uri).path / "model-1.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(b"damaged")
    fetch_sources(spec_of(model=uri))
    found = resolve_model(uri)
    assert (found.path / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rollout_exporting.json": b"{}"}, "an export to it has not ended"),
        (None, r"expected a model's folder with config\.json.*got 0"),
    ],
)
def test_what_is_no_whole_model_is_refused_with_its_field(
    put, proxy, cache, google_bucket, more, says
):
    if more is not None:
        put_model(put, **more)
    with pytest.raises(ModelNotFound, match=rf"spec\.model\.uri: gs://.*{says}"):
        fetch_sources(spec_of(model=f"gs://{google_bucket}/models/tiny"))


def test_a_file_and_a_bucket_that_are_not_there_are_named(proxy, cache, google_bucket):
    with pytest.raises(DataNotFound, match=r"spec\.train\.data\.jsonl\.uri: there is no gs://"):
        fetch_sources(spec_of(data=f"gs://{google_bucket}/none.jsonl"))
    with pytest.raises(PlaceUnreachable, match="make the bucket"):
        fetch_sources(spec_of(data="gs://nobody-made-me/none.jsonl"))


@pytest.mark.parametrize("name", ["", "*.jsonl", "data/"])
def test_a_name_of_many_files_is_refused(proxy, cache, google_bucket, name):
    with pytest.raises(DataNotFound, match="expected one file"):
        fetch_sources(spec_of(data=f"gs://{google_bucket}/{name}"))


def test_what_was_not_fetched_is_said(cache):
    with pytest.raises(DataNotFound, match=r"is not in this machine's cache.*rollout run fetch it"):
        find_files("s3://b/rows.jsonl", cache, cache)
    with pytest.raises(ModelNotFound, match=r"is not in this machine's cache"):
        resolve_model("s3://b/model")


def test_a_file_of_the_web_is_copied_and_then_known_by_its_digest(web, cache):
    web.files["/rows.jsonl"], uri = ROWS, f"{web.url}/rows.jsonl"
    fetch_sources(spec_of(data=uri, digest=DIGEST))
    assert build_source(Data.model_validate({"jsonl": {"uri": uri, "digest": DIGEST}}))
    web.asked.clear()
    fetch_sources(spec_of(data=uri, digest=DIGEST))
    assert web.asked == []


@pytest.mark.parametrize("gives_ranges", [True, False])
def test_a_file_of_the_web_is_gone_on_with(web, cache, gives_ranges):
    web.files["/a/rows.jsonl"], web.gives_ranges, web.breaks = ROWS, gives_ranges, 2
    uri = f"{web.url}/a/rows.jsonl"
    fetch_sources(spec_of(data=uri, digest=DIGEST))
    assert read(uri, cache) == ROWS


def test_other_bytes_than_the_digest_says_are_refused(web, cache):
    web.files["/rows.jsonl"], uri = ROWS.replace(b"1?", b"2?"), f"{web.url}/rows.jsonl"
    fetch_sources(spec_of(data=uri, digest=DIGEST))
    with pytest.raises(DataNotFound, match=rf"expected digest {DIGEST}, got blake3:"):
        build_source(Data.model_validate({"jsonl": {"uri": uri, "digest": DIGEST}}))


def test_a_redirect_away_from_https_is_refused(web, cache):
    web.leads["/rows.jsonl"] = "http://127.0.0.1:1/rows.jsonl"
    with pytest.raises(PlaceUnreachable, match="leads to a place that is not https"):
        fetch_sources(spec_of(data=f"{web.url}/rows.jsonl", digest=DIGEST))


def test_a_redirect_within_https_is_followed_and_no_circle_is(web, cache):
    web.files["/new.jsonl"], web.leads["/rows.jsonl"] = ROWS, f"{web.url}/new.jsonl"
    web.leads["/circle"] = f"{web.url}/circle"
    uri = f"{web.url}/rows.jsonl"
    fetch_sources(spec_of(data=uri, digest=DIGEST))
    assert read(uri, cache) == ROWS
    with pytest.raises(PlaceUnreachable, match="leads on more than 5 times"):
        fetch_sources(spec_of(data=f"{web.url}/circle", digest=DIGEST))


def test_what_an_address_asks_for_is_not_told(web, cache):
    with pytest.raises(DataNotFound) as caught:
        fetch_sources(spec_of(data=f"{web.url}/none.jsonl?signature=secret", digest=DIGEST))
    assert "secret" not in str(caught.value)
    assert "none.jsonl" in str(caught.value)


@pytest.mark.process
def test_rows_and_models_of_s3_come_from_the_server_of_the_objects(s3_endpoint, bucket, cache):
    client = kit.s3_client(s3_endpoint)
    for name, data in FILES.items():
        client.put_object(Bucket=bucket, Key=f"models/tiny/{name}", Body=data)
    client.put_object(Bucket=bucket, Key="rows.jsonl", Body=ROWS)
    model, data = f"s3://{bucket}/models/tiny", f"s3://{bucket}/rows.jsonl"
    where = {"uri": f"s3://{bucket}/runs", "endpoint": s3_endpoint}
    fetch_sources(spec_of(model=model, data=data, **where))
    assert read(data, cache) == ROWS
    assert {path.name for path in resolve_model(model).path.iterdir()} == set(FILES)
