"""The training loop, its rows, its loss and its learner."""
