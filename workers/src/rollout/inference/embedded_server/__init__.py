"""A small server around the embedded engine: OpenAI's routes over a Unix socket, so that models are served without vLLM."""
