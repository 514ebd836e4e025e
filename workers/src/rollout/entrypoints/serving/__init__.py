"""The processes of online inference: a gateway, and the engines behind it that are ours."""
