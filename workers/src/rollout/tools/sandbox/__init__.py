"""Where code of the policy runs: one sandbox an episode, bounded in everything, with nothing of ours in it."""
