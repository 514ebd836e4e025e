"""The pod of an endpoint's server: a gateway, an engine, keys that a Secret brings, and logs that the kubelet reads."""
