"""Runs on another machine that ssh reaches: it is looked at, given code and data, started, followed, and its results fetched.

``ssh.py`` alone starts the system's client; ``program.py`` is what runs at the far end, by whatever Python is there.
"""
