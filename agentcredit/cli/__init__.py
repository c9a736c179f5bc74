"""One file per command; typer and rich alone at import, so that --help stays fast."""
