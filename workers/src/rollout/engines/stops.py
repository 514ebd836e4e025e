"""Stop texts for engines: scanners with a model folder's tokenizer, and completions cut where they end.

The rule itself is ``rollout_vllm.stops``, which runs inside vLLM's server, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rollout.rendering.tokenizer import TOKENIZER_FILE, ModelTokenizer, load_tokenizer
from rollout.types import Completion, GenerateRequest, VersionSpan
from rollout_vllm.stops import StopScanner


class StopTexts:
    """The tokenizer of a model folder, read when the first request has stop texts.

    ``file`` is what another process can read it from; None where the folder has an older format.
    """

    def __init__(self, model: Path) -> None:
        self._model = model
        path = model / TOKENIZER_FILE
        self.file = path.absolute() if path.is_file() else None
        self._tokenizer: ModelTokenizer | None = None

    def scanner(self, request: GenerateRequest) -> StopScanner | None:
        """For one new completion of a request; None where no text ends it. Raises SpecError for a broken tokenizer."""
        sampling = request.sampling
        if not sampling.stop:
            return None
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._model)
        return StopScanner(
            self._tokenizer.decode,
            sampling.stop,
            least=sampling.min_new_tokens,
            begun=request.prompt_ids[len(request.prompt_ids) - request.begun :],
        )

    def cut(self, completion: Completion, request: GenerateRequest) -> Completion:
        """The completion up to the token that completes a stop text, finished there; as it is without one.

        One that the engine gave up stays given up.
        """
        scanner = None if completion.finish == "aborted" else self.scanner(request)
        if scanner is None:
            return completion
        ends = (place for place, token in enumerate(completion.token_ids) if scanner.push(token))
        last = next(ends, None)
        return completion if last is None else cut_completion(completion, last + 1)


def cut_completion(completion: Completion, num_tokens: int) -> Completion:
    """The first tokens of a completion, as one that has stopped."""
    return replace(
        completion,
        token_ids=completion.token_ids[:num_tokens],
        logprobs=completion.logprobs[:num_tokens],
        finish="stop",
        spans=tuple(
            VersionSpan(
                start=span.start,
                end=min(span.end, num_tokens),
                lineage=span.lineage,
                step=span.step,
            )
            for span in completion.spans
            if span.start < num_tokens
        ),
    )
