"""The coordinator behind its address: who calls, whether they may, how much at once."""
