"""``rollout infer serve``: models made ready, engines and a gateway kept alive, and versions that follow a run."""
