"""How a policy learns: the algorithm with its knobs, the optimizer, what one step is made of."""
