"""Measuring a model behind a server that speaks OpenAI's chat completions: answers in a file, which a later call goes on with."""
