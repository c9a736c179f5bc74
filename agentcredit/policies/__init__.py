"""Policies: from a context of token ids to sampled ids with their log-probabilities."""
