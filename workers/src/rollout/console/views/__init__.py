"""The pages: each file reads what its pages show, and answers their addresses. Nothing here changes a run but ``acting``."""
