"""BLAKE3 of tensors where they lie: the digests of the host's library, computed by the device."""
