"""Environments, each in its own process and interpreter (design §5). Imports the standard library alone."""
