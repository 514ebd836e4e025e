"""Steps that learn from preferences: pairs of answers, and answers with a label."""
