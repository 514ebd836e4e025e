"""Makes what is there what the plan wants: the only place that writes children."""
