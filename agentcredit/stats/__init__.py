"""Intervals and paired comparisons: pure functions on arrays."""
