"""What the operator remembers of the cluster: our objects as bytes, children as scalars."""
