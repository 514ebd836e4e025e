"""Broken input for what a run's processes read of each other: ``python hostile_calls.py PARSER CASES``; not a test itself.

Calls of workers that went astray or were taken over, the learner's meeting, ledgers that somebody wrote into,
what ranks tell each other, and weights as they travel.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import msgspec
from hostile_kit import VALUES, blobs, documents, main, texts
from hypothesis import strategies as st
from msgspec import inspect

sys.path.append(str(Path(__file__).parents[1] / "rollout" / "coordinator"))

from coordinator_kit import IDENTITY, PLAN, Bench, FakeActor, FakeLearner
from plans import changed

from rollout.codec import encode_body
from rollout.errors import RolloutError
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.protocol.envelope import Envelope, read_envelope
from rollout.protocol.routes import ROUTES

CALL_SECONDS_MAX = 0.2  # short: what never comes
"""A caller that hangs up while it waits for work."""
ENDS = {"/v1/operator/stop", "/v1/learner/failed"}
"""What is told there is believed, and ends the run."""


PLAIN = {
    inspect.IntType: 1,
    inspect.FloatType: 0.0,
    inspect.BoolType: False,
    inspect.BytesType: b"x",
}


def example(kind):
    """A plain message of a type, every field filled in."""
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            return {field.encode_name: example(field.type) for field in kind.fields}
        case inspect.VarTupleType() | inspect.ListType():
            return [example(kind.item_type)]
        case inspect.TupleType():
            return [example(one) for one in kind.item_types]
        case inspect.DictType():
            return {"a": example(kind.value_type)}
        case inspect.UnionType():
            return example(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.LiteralType():
            return kind.values[0]
    return PLAIN.get(type(kind), "actor-0")


SENDER = Envelope(worker="actor-0", incarnation=1).headers()
SENDERS = st.just(SENDER) | documents(SENDER).map(
    lambda them: {name: str(text) for name, text in them.items()}
)
"""Headers that say who calls."""


def bodies(path):
    """Calls of one path, in both encodings; some are what nobody encodes so."""
    good = example(inspect.type_info(ROUTES[path].request))
    made, packed = documents(good), msgspec.msgpack.encode(good)
    here, wire = st.just(path), st.just("msgpack")
    return st.tuples(here, SENDERS, wire, made.map(pack) | blobs(packed)) | st.tuples(
        here, SENDERS, st.just("json"), made.map(msgspec.json.encode)
    )


def pack(document):
    try:
        return msgspec.msgpack.encode(document)
    except OverflowError:  # an integer that msgpack has no room for
        return b"\xcf" + b"\xff" * 8


class Served:
    """A coordinator that is called, and replaced once its run has ended."""

    def __init__(self, folder, plan):
        self._folder, self._plan, self._lives = folder, plan, 0
        self._bench = None
        self.open()

    def open(self):
        if self._bench is not None:
            self._bench.close()
        self._lives += 1
        place = self._folder / str(self._lives)
        place.mkdir()
        self._bench = Bench(place)
        self._client = self._bench.start(plan=self._plan)
        FakeActor(self._client)
        FakeLearner(self._client, self._bench.store)

    def call(self, path, headers, wire, body):
        coordinator, loop = self._bench.coordinator, self._client._transport._loop
        work = asyncio.wait_for(
            coordinator.handle(ROUTES[path], read_envelope(headers), body, wire), CALL_SECONDS_MAX
        )
        try:
            status, answer = asyncio.run_coroutine_threadsafe(work, loop).result(60)
        except TimeoutError:
            return
        assert coordinator.unexpected_errors == 0, answer
        if status != 200:
            assert status < 500, answer
            raise RolloutError(answer.decode(errors="replace"))

    def check(self):
        """The next honest call is served."""
        assert self._client.status() is not None
        if self._bench.coordinator.run.stop_reason() is not None:
            self.open()

    def close(self):
        self._bench.close()


def serving(plan):
    @contextmanager
    def opened(folder):
        with closing(Served(folder, plan)) as served:
            yield served

    return opened


def call(served, ask):
    try:
        served.call(*ask)
    finally:
        served.check()


CALLS = st.sampled_from(sorted(set(ROUTES) - ENDS)).flatmap(bodies)
MEETING = st.sampled_from([f"/v1/learner/{one}" for one in ("join", "stay", "leaving", "left")])
REGISTER = "/v1/actor/register"
HONEST_CALL = (REGISTER, SENDER, "json", b'{"index": 0}')

# -- the ledger -------------------------------------------------------------------------------------------


@contextmanager
def ledger(folder):
    """Reads a ledger's file whole; the bytes of a good one are there to be broken."""
    yield folder / "ledger.db"


@cache
def good_ledger():
    """The file of a run that has committed two of its steps."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place))
        client = bench.start()
        actor, learner = FakeActor(client), FakeLearner(client, bench.store)
        for _ in range(2):
            actor.work()
            learner.commit(learner.ask(wait=5.0))
            learner.anchor()
        bench.close()
        with closing(sqlite3.connect(Path(place, "ledger.db"))) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
        return Path(place, "ledger.db").read_bytes()


def write(path, data):
    for one in path.parent.glob(path.name + "*"):
        one.unlink(missing_ok=True)  # a ledger that could not be opened lets go of its files late
    path.write_bytes(data)


async def load(path):
    ledger = SqliteLedger(path, IDENTITY)
    try:
        state = await ledger.load()
        await ledger.records_after(0)
        await ledger.batch_of(1)
        await ledger.metrics_after(0)
        return state
    finally:
        await ledger.close()


def read_ledger(path):
    asyncio.run(load(path))
    with LedgerReader(path) as reader:
        reader.run()
        reader.steps()
        reader.state()
        reader.samples(1)
        reader.evaluations()
        reader.dispositions()
        reader.anchors()
        reader.events()


def read_ledger_file(path, data):
    write(path, data)
    read_ledger(path)


def read_ledger_rows(path, changes):
    write(path, good_ledger())
    with closing(sqlite3.connect(path)) as connection:
        for (table, column), value in changes:
            try:
                connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
            except (sqlite3.Error, UnicodeEncodeError):
                continue  # what the schema refuses cannot be there
        connection.commit()
    read_ledger(path)


TEXTS = {
    "run": ("outcome", "settings"),
    "steps": ("metrics", "phase_seconds"),
    "evaluations": ("summary",),
    "anchors": ("manifest",),
    "events": ("data",),
}
BLOBS = {"steps": ("plan",), "bodies": ("body",)}
"""Cells that hold documents; the schema says what the others hold."""


def cells(places, values):
    named = [(table, column) for table, columns in places.items() for column in columns]
    return st.tuples(st.sampled_from(named), values)


DOCUMENTS = VALUES.map(lambda value: msgspec.json.encode(value).decode()) | texts('{"a": [1.5]}')
ROWS = cells(TEXTS, DOCUMENTS) | cells(
    BLOBS, VALUES.map(pack) | blobs(encode_body([])) | blobs(b"\x81\xa1a\x01")
)

# -- ranks and weights ------------------------------------------------------------------------------------


def parsers():
    """By name; what needs a model's libraries is imported where it is asked for."""
    return {
        "calls": lambda: (call, CALLS, HONEST_CALL, serving(PLAN)),
        "rendezvous": lambda: (
            call,
            MEETING.flatmap(bodies),
            HONEST_CALL,
            serving(changed(PLAN, nodes=2)),
        ),
        "ledger-file": lambda: (read_ledger_file, blobs(good_ledger()), good_ledger(), ledger),
        "ledger-rows": lambda: (
            read_ledger_rows,
            st.lists(ROWS, min_size=1, max_size=3),
            [],
            ledger,
        ),
        "ranks": ranks,
    }


def ranks():
    """What ranks tell each other."""
    import torch

    from rollout.learner.model import exchange
    from rollout.learner.objectives.ppo_estimates import Before
    from rollout.protocol.messages import Batch

    one = torch.ones(3)
    kinds = (Batch, dict[tuple[int, int], Before], dict[int, float], str, list[str], torch.Tensor)
    before = Before(values=one, old_logprobs=one, reference_logprobs=one)
    good = exchange.encode({(0, 1): before})

    def read(folder, content):
        del folder
        refusals = 0
        for kind in kinds:
            try:
                exchange.decode(content, kind)
            except RolloutError as error:
                refusals, last = refusals + 1, error
        if refusals == len(kinds):
            raise last

    plain = ["torch.float32", [3], bytes(12)]
    tensors = documents(plain).map(pack)
    return read, blobs(good) | tensors | documents({"a": 1.0}).map(pack), good, None


if __name__ == "__main__":
    main(lambda name: parsers()[name]())
