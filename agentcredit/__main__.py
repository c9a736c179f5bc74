"""``python -m agentcredit`` is the command ``agentcredit``."""

from agentcredit.cli.main import main

if __name__ == "__main__":
    main()
