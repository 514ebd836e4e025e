"""The turns of a group in play: its samples' coroutines, where they wait for the engine, and their environments."""
