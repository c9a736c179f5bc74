"""A forecaster beside a policy, and acting by its forecasts: CoPE's test of an explicit temporal ensemble."""
