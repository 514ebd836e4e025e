"""Objects by name, each change on a condition, beside the objects that are named by their digest."""
