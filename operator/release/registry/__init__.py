"""The only part that reaches another machine: a release goes to a registry, whole and readable by others."""
