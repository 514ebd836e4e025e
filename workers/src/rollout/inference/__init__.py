"""Online inference: the gateway that clients talk to, and the small server around the embedded engine behind it."""
