"""``rollout runs list|show|trace|samples`` of a service's models."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout.cli.book.finding import load_decoder, service_folder
from rollout.cli.outcomes import print_fact
from rollout.cli.output import (
    OutputFormat,
    cell,
    print_json,
    print_line,
    print_note,
    print_table,
)

if TYPE_CHECKING:
    from rollout.service.reading.decoding import ReadCall
    from rollout.service.reading.finding import OpenedModel

LISTED_MAX = 1000
"""Models that a list shows."""


def list_rows(service: Path | None) -> list[dict[str, Any]]:
    """Rows of a book's models; none, with a note, where the book cannot be read and was not asked for by name."""
    from rollout.errors import LedgerError, SpecError
    from rollout.ledger.sqlite.call_reader import CallBookReader
    from rollout.service.reading.finding import BOOK, has_book, list_models
    from rollout.service.reading.summary import list_rows as read_rows

    folder = service_folder(service)
    if not has_book(folder):
        if service is not None:
            raise SpecError(f"--service {folder}: no service has kept a book there")
        return []
    try:
        book = CallBookReader(folder / BOOK)
        try:
            return read_rows(book, list(islice(list_models(book), LISTED_MAX)))
        finally:
            book.close()
    except LedgerError as error:
        if service is not None:
            raise
        print_note(f"note: models of the service are left out: {error}")
        return []


def show_model(opened: OpenedModel, output: OutputFormat) -> None:
    """What a model is and where it stands."""
    from rollout.service.reading.summary import summarise_model

    with opened:
        found = summarise_model(opened)
    if output is OutputFormat.json:
        print_json(found)
        return
    samples = found["samples"]
    print_line(f"{found['model']}: a model of the training service over {found['base']}")
    print_fact("stands", found["state"])
    print_fact("owner", found["owner"])
    print_fact("base", f"{found['base_uri'] or found['base']} ({found['base_digest']})")
    print_fact("trained", _trained(found["adapter"]))
    if found["begins_from"] is not None:
        moments = "with" if found["begins_from"]["optimizer"] else "without"
        print_fact("begins from", f"{found['begins_from']['path']}, {moments} its moments")
    counts = ", ".join(f"{name} {count}" for name, count in found["calls"].items())
    print_fact("calls", f"{counts or 'none'}; {found['refused']} refused")
    print_fact("steps", f"{found['steps']} on {found['tokens']} tokens")
    print_fact(
        "samples",
        f"{samples['completions']} completions, {samples['tokens']} tokens, in {samples['calls']} calls",
    )
    print_fact("hash chain", found["chain"])
    _print_losses(found["losses"])


def _trained(adapter: dict[str, Any] | None) -> str:
    if adapter is None:
        return "all weights"
    targets = ", ".join(adapter["targets"])
    return f"an adapter: rank {adapter['rank']}, alpha {adapter['alpha']}, {targets}, seed {adapter['seed']}"


def _print_losses(losses: list[dict[str, Any]]) -> None:
    if losses:
        print_line()
        keys = ("step", "call", "loss", "tokens", "learning_rate")
        rows = [[row[key] for key in keys] for row in losses]
        print_table(["STEP", "CALL", "LOSS", "TOKENS", "LEARNING RATE"], rows)


def trace_model(
    opened: OpenedModel, call: int | None, after: int, limit: int, output: OutputFormat
) -> None:
    """Each call: what was asked and answered, and the chain behind it. Raises SpecError for a call that is not there."""
    from rollout.errors import SpecError
    from rollout.service.reading.steps import read_calls

    with opened:
        first = after if call is None else call - 1
        found = list(islice(read_calls(opened.book, opened.model.id, first), 1 if call else limit))
    if call is not None and (not found or found[0].seq != call):
        raise SpecError(
            f"--call {call}: {opened.model.id} has no such call; see: rollout runs show"
        )
    rows = [_trace_row(one) for one in found]
    if output is OutputFormat.json:
        print_json(rows)
        return
    for row in rows:
        print_line(f"{row['call']}  {row['kind']}  {row['digest']}")
        print_line(f"  asked       {row['asked']}")
        print_line(f"  answered    {row['answered']}")
        print_line(f"  when        {row['received_at']} to {row['answered_at'] or '-'}")
        print_line(f"  chain       {row['chain'] or '-'}")
    if call is None and len(rows) == limit:
        print_note(f"at most {limit} calls are shown: --limit, and --after {rows[-1]['call']}")


def _trace_row(one: ReadCall) -> dict[str, Any]:
    from rollout.service.reading.words import describe_answer, describe_call, kind_name

    return {
        "call": one.seq,
        "kind": kind_name(one.call),
        "digest": one.digest,
        "asked": describe_call(one.call),
        "answered": describe_answer(one.answer),
        "chain": one.chain,
        "received_at": _time(one.received_at),
        "answered_at": _time(one.answered_at),
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def print_samples(
    opened: OpenedModel, step: int | None, limit: int, base: str | None, output: OutputFormat
) -> None:
    """Completions of the samplers of a model, of those of ``step`` alone where it is said."""
    from rollout.service.reading.samples import sample_rows

    with opened:
        pages = sample_rows(opened.book, opened.model, load_decoder(opened, base))
        wanted = (row for page in pages for row in page if step in (None, row["step"]))
        rows = list(islice(wanted, limit))
    if output is OutputFormat.json:
        print_json(rows)
        return
    headings = ["STEP", "PROMPT", "COMPLETION", "TOKENS", "LOGPROB", "ENDING", "ID"]
    print_table(headings, _sample_cells(rows))
    if not rows:
        print_note("nothing was sampled from this model, or from its weights of that step")


def _sample_cells(rows: list[dict[str, Any]]) -> Iterator[list[Any]]:
    for row in rows:
        prompt = row["prompt_ids"] if row["prompt"] is None else row["prompt"]
        completion = row["token_ids"] if row["completion"] is None else row["completion"]
        total = cell(float(sum(row["actor_logprobs"])))
        yield [row["step"], prompt, completion, row["num_tokens"], total, row["ending"], row["id"]]
