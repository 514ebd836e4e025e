"""Programs of ours that run in a sandbox, with the standard library alone: read as text, never imported outside."""
