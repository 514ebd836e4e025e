"""Where the model of an endpoint comes from."""
