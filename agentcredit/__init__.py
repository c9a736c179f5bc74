"""agentcredit: which step of a long episode deserves the reward, compared fairly."""

__version__ = "0.1.0"
