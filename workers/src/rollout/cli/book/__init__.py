"""Commands on the book of a training service: the models in it are addressed as runs are."""
