"""From rewards to advantages: groups, GAE, whitening, penalties."""
