"""Where rows come from and in which order: sources, field mapping, cursors, splits.

Never imports torch or transformers: the coordinator reads data. ``datasets`` is loaded only for a
Hugging Face source.
"""
