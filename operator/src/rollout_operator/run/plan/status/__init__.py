"""From what is observed to the status and the events that say so. Pure."""
