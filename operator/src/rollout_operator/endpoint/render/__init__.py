"""What an endpoint's children look like. Pure: data in, manifests out."""
