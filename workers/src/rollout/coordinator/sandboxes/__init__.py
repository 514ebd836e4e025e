"""The broker of a run's sandbox pods: it keeps some ready, gives each to one episode, and removes it afterwards."""
