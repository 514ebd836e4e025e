"""What a service keeps beside its book, and how models come out of both again."""
