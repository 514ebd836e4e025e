"""What runs cost: when their processes lived (from ledgers), times the prices of a table that the user keeps."""
