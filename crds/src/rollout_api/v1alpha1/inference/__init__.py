"""How completions are drawn and served: in batches, and behind an address."""
