"""Kueue: a run with a queue asks for quota by one ``Workload`` object, and gives it back when its pods are gone.

Nothing of Kueue is imported; its objects are read and written as it documents for jobs of others.
"""
