"""Models by URI: where their files come from, how the tiny ones are made, what is known of the big ones.

Nothing here imports torch: the tiny models are written with numpy. See ``resolve.resolve_model``.
"""
