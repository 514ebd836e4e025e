"""What a person sees of a run that is under way here."""
