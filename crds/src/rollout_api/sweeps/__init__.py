"""What a sweep is made of, for whoever runs one: settings of its runs, and which of them lose. Pure."""
