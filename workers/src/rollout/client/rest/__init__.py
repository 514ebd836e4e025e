"""What a service keeps of a caller, asked for without a session: runs, checkpoints, sessions, and what becomes of them."""
