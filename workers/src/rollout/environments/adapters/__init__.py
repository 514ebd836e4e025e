"""Environments of other libraries, each in one file: ``train.environment.python`` names its class."""
