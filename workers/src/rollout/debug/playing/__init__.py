"""One episode of an environment, played by a person or a model in the actor's own loop: no run, nothing recorded."""
