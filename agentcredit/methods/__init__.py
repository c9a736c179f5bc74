"""Credit assignment: pure functions from groups of episodes to numbers on tokens."""
