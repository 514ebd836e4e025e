"""A small server around a model that gives vectors or scores: OpenAI's and vLLM's routes over a Unix socket."""
