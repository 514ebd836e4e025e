"""From raw records to rows: which fields mean what, and what is said when they do not."""
