"""Plugins whose files are changed while a run goes on: new episodes are played with what lies there now."""
