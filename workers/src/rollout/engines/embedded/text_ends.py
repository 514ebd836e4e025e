"""Which samples of a batch have said a stop text, and with which token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollout_vllm.stops import StopScanner

Scanners = Sequence[StopScanner | None]
"""One per sample of a batch; None for a sample that no text ends."""


class TextEnds:
    """``ends`` are the lengths of samples that a text ended, 0 for the others. Axis S: live samples."""

    def __init__(self, scanners: Scanners) -> None:
        self.ends = [0] * len(scanners)
        self._scanners = scanners

    def hear(
        self, samples: Sequence[int], ended_S: torch.Tensor, tokens_S: torch.Tensor, length: int
    ) -> torch.Tensor:
        """Give every live sample its new token, its ``length``-th; whether that ended it, bool [S]."""
        found_S = torch.zeros_like(ended_S)
        for place, (sample, ended, token) in enumerate(
            zip(samples, ended_S.tolist(), tokens_S.tolist(), strict=True)
        ):
            scanner = self._scanners[sample]
            if not ended and scanner is not None and scanner.push(token):
                self.ends[sample] = length
                found_S[place] = True
        return found_S
