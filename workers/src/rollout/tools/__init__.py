"""What the policy may call: tools, and the sandbox that the code it writes runs in. Knows no tokens and no rewards."""
