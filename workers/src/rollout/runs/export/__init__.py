"""A run's weights as a plain Hugging Face folder, and what such a folder says of itself. Never loads torch."""
