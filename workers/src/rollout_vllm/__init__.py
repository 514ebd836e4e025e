"""What rollout adds to a vLLM server: it runs inside the server's own processes.

Pure Python over what every vLLM image has (torch, safetensors, blake3, tokenizers). It imports nothing of
``rollout``, so that a folder on PYTHONPATH is all that a stock image needs (``rollout place-plugin``).
"""
