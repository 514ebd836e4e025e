"""Where a completion has said a stop text, whatever divides it: against decoding everything again at every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from rollout.errors import SpecError
from rollout.models.resolve import resolve_model
from rollout.rendering.stops import reply_text, require_stops
from rollout.rendering.tokenizer import load_tokenizer
from rollout.types import SamplingParams
from rollout_vllm.stops import REPLACEMENT, StopScanner

Decode = Callable[[Sequence[int]], str]
PIECES = ["▁", "a", "b", "▁a", "ab", "▁b", "\n", "é", "▁é", "</", "s>", "END", "▁END"]


def byte_fallback() -> Decode:
    """A tokenizer as Llama 2 has it: pieces with ``▁`` for a space, single bytes where a piece is missing."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {piece: 256 + index for index, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Its tokens are bytes."""
    folder = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path_factory.mktemp("cache")).path
    return load_tokenizer(folder)


def naive_end(
    decode: Decode, ids: Sequence[int], stops: Sequence[str], least: int = 0
) -> int | None:
    """The tokens up to the end by the rule itself."""
    before = ""
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count]).rstrip(REPLACEMENT)
        new = any(text.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in stops)
        if new and count > least and len(text) > len(before):
            return count
        before = text if len(text) > len(before) else before
    return None


def end(scanner: StopScanner, ids: Sequence[int]) -> int | None:
    return next((place + 1 for place, token in enumerate(ids) if scanner.push(token)), None)


TEXT = st.text(alphabet="ab é€🙂\n</s>END", max_size=60)
STOPS = st.lists(
    st.sampled_from(["END", "</s>", "\n\n", "€", "🙂b", "a a", "é", "b", "ab<", " ", "\nE"]),
    min_size=1,
    max_size=4,
    unique=True,
)


@given(text=TEXT, stops=STOPS, least=st.integers(0, 8), cut=st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_the_end_is_that_of_the_whole_text_however_it_is_cut_into_requests(
    qwen, text, stops, least, cut
):
    ids = qwen.encode(text)
    wanted = naive_end(qwen.decode, ids, stops, least)

    assert end(StopScanner(qwen.decode, stops, least=least), ids) == wanted
    begun = min(cut, len(ids) if wanted is None else wanted - 1)
    rest = StopScanner(qwen.decode, stops, least=max(0, least - begun), begun=ids[:begun])
    assert end(rest, ids[begun:]) == (None if wanted is None else wanted - begun)


@given(
    ids=st.lists(st.sampled_from([*range(256, 256 + len(PIECES)), 10, 65, 69]), max_size=60),
    stops=STOPS,
)
@settings(max_examples=100, deadline=None)
def test_pieces_with_spaces_before_them_are_found_alike(ids, stops):
    decode = byte_fallback()

    assert end(StopScanner(decode, stops), ids) == naive_end(decode, ids, stops)


@given(ids=st.lists(st.integers(0, 258), max_size=200), stops=STOPS)
@settings(max_examples=100, deadline=None)
def test_tokens_that_make_no_text_at_all_hold_nobody(qwen, ids, stops):
    assert end(StopScanner(qwen.decode, stops), ids) == naive_end(qwen.decode, ids, stops)


def test_a_long_run_of_byte_pieces_is_read_character_by_character():
    decode = byte_fallback()
    ids = list(("é" * 40 + "€").encode())

    assert end(StopScanner(decode, ["€"]), ids) == len(ids)


def test_the_cost_of_a_token_does_not_grow_with_the_completion(qwen):
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return qwen.decode(ids)

    end(StopScanner(decode, ["END"]), qwen.encode("word " * 400))

    assert max(lengths) <= 16


@pytest.mark.parametrize(
    ("said", "sampling", "text"),
    [
        ("so END", {"stop": ("END",)}, "so "),
        ("so END", {"stop": ("END",), "include_stop": True}, "so END"),
        ("END so END", {"stop": ("END",), "min_new_tokens": 5}, "END so "),
        ("so END", {"stop": ("END",), "min_new_tokens": 6}, "so END"),
        ("so END and", {"stop": ("END",)}, "so END and"),
        ("<b></b>", {"stop": ("</b>", "b>")}, "<b>"),
        ("a\nb.", {"stop_token_ids": (13,)}, "a\nb"),
        ("a\nb.", {"stop_token_ids": (13,), "include_stop": True}, "a\nb."),
        ("", {"stop": ("END",)}, ""),
    ],
)
def test_rewards_see_a_reply_without_what_ended_it(qwen, said, sampling, text):
    class Renderer:
        stop_token_ids = (258,)
        decode = staticmethod(qwen.decode)

    params = SamplingParams(max_new_tokens=64, **sampling)

    assert reply_text(qwen.encode(said), params, Renderer()) == text


def test_what_no_completion_can_say_is_refused(qwen):
    require_stops(("END",), (5, 258), qwen, 259)
    with pytest.raises(
        SpecError, match=r"stop: '<\|im_end\|>' is a special .* stopTokenIds: \[258\]"
    ):
        require_stops(("<|im_end|>",), (), qwen, 259)
    with pytest.raises(
        SpecError, match="stopTokenIds: 259 is no token of this model; expected 0 to 258"
    ):
        require_stops((), (259,), qwen, 259)
