"""Environments, each in its own process and interpreter. Imports the standard library alone."""
