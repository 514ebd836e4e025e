"""What broken input is made of, and how one parser is fed with it under a memory limit; not a test itself."""

import copy
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from contextlib import nullcontext
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from rollout.errors import RolloutError
from rollout_api.visible import visible

GROWTH_BYTES_MAX = 512 << 20
BATCH_MAX = 1000
"""Cases of one process: hypothesis keeps what it has drawn, and the limit is meant for the parser."""
SHARED_MEMORY = "/dev/shm"
LIBC = ctypes.CDLL(None)
M_ARENA_MAX = -8
PIECES = [
    *(
        "*a",
        "&a ",
        "<<: ",
        "!!binary ",
        "!!float ",
        "!!omap ",
        "!!set ",
        "!!timestamp ",
        "!x ",
        "? ",
    ),
    *(
        "[",
        "]",
        "{",
        "}",
        "- ",
        ": ",
        "\n",
        "\n  ",
        "#",
        "|",
        ">",
        "---\n",
        "%YAML 1.1\n",
        "'",
        '"',
        "\\",
    ),
    *(
        "9" * 80,
        "0x" + "f" * 80,
        "1e999",
        ".nan",
        "2001-13-45",
        "null",
        "~",
        "\t",
        "\x1b",
        "\u2028",
        "\ufeff",
    ),
    *(
        "=",
        "[[",
        "]]",
        '"""',
        "'''",
        "\\u0000",
        "inf",
        "[" * 70,
        "spec",
        "metadata",
        "train",
        "data: ",
    ),
]


def texts(base):
    """Text of pieces that matter, alone or put into a good one."""
    noise = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=12).map("".join)
    places = st.integers(0, len(base))
    return noise | st.builds(
        lambda at, n, new: base[:at] + new + base[at + n :], places, st.integers(0, 9), noise
    )


def blobs(base):
    """Bytes, alone or put into good ones, a few of which are lost."""
    noise = st.binary(max_size=64)
    places = st.integers(0, len(base))
    cut = st.builds(
        lambda at, n, new: base[:at] + new + base[at + n :], places, st.integers(0, 64), noise
    )
    return noise | cut | places.map(lambda at: base[:at])


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(PIECES)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


NUMBERS = st.integers(-2, 3) | st.integers()
KIN = {bool: st.booleans(), int: NUMBERS, float: st.floats(), str: st.text(max_size=5)}


def places_in(document, place=()):
    """Where a document has values, and what is there: paths of keys and positions."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*place, key), value
        if isinstance(value, dict | list):
            yield from places_in(value, (*place, key))


def documents(base):
    """A good document with a few values lost, or others in their place: mostly of the same type."""
    places = list(places_in(base))

    def change(index):
        place, value = places[index]
        alike = KIN.get(type(value), VALUES) | st.sampled_from([one for _, one in places])
        other = st.integers(0, 3).flatmap(lambda n: alike if n else VALUES | st.just(KeyError))
        return st.tuples(st.just(place), other)

    changes = st.integers(0, len(places) - 1).flatmap(change)
    return st.lists(changes, max_size=4).map(lambda them: changed(base, them))


def changed(base, changes):
    made = copy.deepcopy(base)
    for place, value in changes:
        within = made
        try:
            for key in place[:-1]:
                within = within[key]
            within[place[-1]] = copy.deepcopy(value)
            if value is KeyError:
                del within[place[-1]]
        except (LookupError, TypeError):
            continue  # an earlier change took that place away
    return made


SAID_BYTES_MAX = 6000


def main(find_parser):
    """``PARSER CASES [SEED]``: many cases are fed by one process after the other, each with a seed that it prints.

    ``PARSER,PARSER,... CASES``: each in a fork of its own; a line of JSON for each has its name, its exit code, and what it said.
    """
    name, cases, *drawn = sys.argv[1:]
    if "," in name:
        for one in name.split(","):
            print(json.dumps([one, *feed_apart(int(cases), one, find_parser)]), flush=True)
        return
    if drawn or int(cases) <= BATCH_MAX:
        feed(int(cases), int(*drawn or "0"), *find_parser(name))
        return
    for number, first in enumerate(range(0, int(cases), BATCH_MAX)):
        batch = [name, str(min(BATCH_MAX, int(cases) - first)), str(number)]
        print(*batch, flush=True)
        done = subprocess.run([sys.executable, sys.argv[0], *batch], check=False)
        if done.returncode:
            sys.exit(f"this failed, and does so again: python {sys.argv[0]} {' '.join(batch)}")


def feed_apart(cases, name, find_parser):
    """In a fork of this process, which has imported what parsers need and done nothing else: its exit code, and what it said."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            for number in (1, 2):
                os.dup2(said.fileno(), number)
            try:
                feed(cases, 0, *find_parser(name))
            except BaseException:  # noqa: BLE001 - it is said, and ends the fork
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        words = said.read().decode(errors="replace")[-SAID_BYTES_MAX:]
    return os.waitstatus_to_exitcode(status), words


def feed(cases, drawn, read, strategy, honest, opened=None):
    """Every case returns or is refused by an error of ours, within the limit; what is honest is read afterwards."""
    opened = opened or nullcontext
    memory = (
        SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    )  # nothing waits for a disk
    with tempfile.TemporaryDirectory(dir=memory) as folder, opened(Path(folder)) as place:
        if hasattr(LIBC, "mallopt"):
            LIBC.mallopt(M_ARENA_MAX, 2)  # each thread's arena would reserve 64 MiB of the growth
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + GROWTH_BYTES_MAX,) * 2)

        @seed(drawn)
        @settings(
            max_examples=cases,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def attack(content):
            try:
                read(place, content)
            except RolloutError as error:
                visible(str(error))

        attack()
        read(place, honest)
