"""What is trained and what it is compared with: policy, critic, scorer, adapter, their shards and optimizers."""
