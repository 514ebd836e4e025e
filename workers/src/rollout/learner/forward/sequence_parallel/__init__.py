"""Ulysses (Jacobs 2023): the ranks of a group hold parts of one row's tokens, and in attention parts of its heads."""
