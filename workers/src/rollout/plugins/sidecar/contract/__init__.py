"""The contract as protobuf, and what is generated from it."""
