"""``rollout env``: environments, and one episode played here."""
