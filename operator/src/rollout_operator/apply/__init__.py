"""The exit: writes the children of an object of ours, whatever its kind."""
