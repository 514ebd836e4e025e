"""What a user sizes and sets on pods, and what a runtime allows."""
