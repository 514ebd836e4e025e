"""What broken input is made of, and how one parser is fed with it under a memory limit; not a test itself."""

import resource
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout.errors import RolloutError
from rollout_api.visible import visible

GROWTH_BYTES_MAX = 512 << 20
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


def feed(read, strategy, cases):
    """Every case returns or is refused by an error of ours, within the limit."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + GROWTH_BYTES_MAX,) * 2)
    with tempfile.TemporaryDirectory() as place:

        @settings(
            max_examples=cases,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def attack(content):
            try:
                read(Path(place), content)
            except RolloutError as error:
                visible(str(error))

        attack()
