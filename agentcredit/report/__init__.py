"""Tables of success rates with intervals, beside the published ones."""
