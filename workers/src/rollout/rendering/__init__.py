"""The one seam between messages and token ids. ``build_renderer`` reads a model folder.

Uses ``tokenizers`` and Jinja directly: no transformers and no torch where a model folder has a
``tokenizer.json``.
"""

from rollout.rendering.build import build_renderer

__all__ = ["build_renderer"]
