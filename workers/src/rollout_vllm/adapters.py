"""The digest of the adapter that vLLM's loader was last handed (docs/concepts/equality.md)."""

from __future__ import annotations

from typing import Any

from vllm.lora.lora_model import LoRAModel

from rollout_vllm.digest import combine_digests, digest_tensor

MARK = "rollout_original"


class AdapterWatch:
    """Owns what was seen last; one for each process."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {"digest": "", "num_tensors": 0}

    def begin(self) -> None:
        """Forget the last adapter; from now on every one is hashed as it is handed over. Idempotent."""
        self.seen = {"digest": "", "num_tensors": 0}
        if getattr(LoRAModel, MARK, None) is not None:
            return
        original = LoRAModel.from_lora_tensors.__func__  # pyrefly: ignore - a class method
        watch = self

        def hashed(cls: type[LoRAModel], *arguments: Any, **named: Any) -> LoRAModel:
            tensors = named["tensors"]
            digests = {name: digest_tensor(name, tensor) for name, tensor in tensors.items()}
            watch.seen = {"digest": combine_digests(digests), "num_tensors": len(digests)}
            return original(cls, *arguments, **named)

        setattr(LoRAModel, MARK, original)
        LoRAModel.from_lora_tensors = classmethod(hashed)  # pyrefly: ignore - a classmethod is put in another's place


WATCH = AdapterWatch()
