"""The console of a cluster's runs: the same pages for whoever shows a token of the cluster, and of each object only what that person may read.

It asks the cluster who somebody is (TokenReview) and what they may (SubjectAccessReview), reads objects with an account
of its own that can only read, and what lies in a pod with the viewer's own token. It refuses everybody else, listens
beyond loopback with TLS only, writes nothing, and dials no address that an object names.
"""
