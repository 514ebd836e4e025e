"""What a coordinator does beside answering calls."""
