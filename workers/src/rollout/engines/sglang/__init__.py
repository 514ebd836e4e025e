"""SGLang as a server in an environment of its own: started and asked, never imported."""
