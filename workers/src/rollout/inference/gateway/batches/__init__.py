"""Files and batches of a gateway: what a key has uploaded, and the requests in it, answered beside online traffic."""
