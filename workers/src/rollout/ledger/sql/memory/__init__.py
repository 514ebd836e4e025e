"""What environments keep between episodes, as SQL: written with a step, read as of a version, let go of once it is overwritten."""
