"""Version v1alpha1 of the API: one file a noun. Import from the files; nothing is re-exported."""
