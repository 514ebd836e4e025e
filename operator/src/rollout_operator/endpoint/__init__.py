"""RolloutEndpoints: servers of a model behind one address; a changed one takes over only when its servers answer."""
