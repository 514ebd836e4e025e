"""The vLLM engine: a supervised server, its command, its plugin, what goes over its socket."""
