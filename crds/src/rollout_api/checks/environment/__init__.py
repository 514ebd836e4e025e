"""Rules of what the policy acts in, what it earns, and how it is measured."""
