"""How a run is started: here, or on a cluster."""
