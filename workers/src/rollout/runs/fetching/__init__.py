"""Models and data of buckets and of the web, copied to this machine before a run looks at them."""
