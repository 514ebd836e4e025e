"""Programs of this machine that can be imaged: run, saved and gone on with."""
