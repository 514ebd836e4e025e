"""What a run's children look like. Pure: data in, manifests out; rendered once per run attempt."""
