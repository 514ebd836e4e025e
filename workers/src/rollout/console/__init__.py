"""The console of a laptop's runs: pages over HTTP on loopback, read from the ledgers, drawn on the server.

Works without scripts; one small module keeps a page live. What a model wrote is text on every page and nothing
else. It refuses every caller that did not open the link that was printed, and every name but loopback's.
"""
