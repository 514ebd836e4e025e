"""Commands that start a run: from a manifest, or from options that write one."""
