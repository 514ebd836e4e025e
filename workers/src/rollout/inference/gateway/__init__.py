"""The gateway: OpenAI's HTTP API in front of engines. Knows no weights, no tokenizer and no tensor library."""
