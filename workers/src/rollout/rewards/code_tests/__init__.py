"""Programs that the policy writes, and the hidden tests of its task: each program is run in a sandbox of its own."""
