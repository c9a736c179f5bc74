"""``agentcredit methods``: which methods there are, and what each one's parameters mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentcredit.cli.options import AsJson, print_json

_CARDS = Path(__file__).parents[2] / "docs" / "methods"
"""Method cards, where the program runs from its source tree."""

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List the methods, or show one with its parameters."
)


@app.command("list")
def list_methods(as_json: AsJson = False) -> None:
    """List every method: built in, and from installed plug-ins."""
    from agentcredit.methods import registry

    cards = [_card(name) for name in registry.names()]
    if as_json:
        print_json([{key: card[key] for key in ("name", "kind", "summary", "paper")} for card in cards])
        return
    width = max(len(card["name"]) for card in cards)
    for card in cards:
        typer.echo(f"{card['name']:<{width}}  {card['kind']:<9}  {card['summary']}")


@app.command()
def show(name: Annotated[str, typer.Argument(help="Method: see `methods list`.")], as_json: AsJson = False) -> None:
    """Show a method: its formulas, paper, parameters with their defaults, and published numbers."""
    card = _card(name)
    if as_json:
        print_json(card)
        return
    paper = card["paper"]
    source = ", ".join(
        filter(None, [paper["title"], paper["venue"], f"arXiv {paper['arxiv']}" if paper["arxiv"] else ""])
    )
    typer.echo(f"{card['name']} ({card['kind']}): {card['summary']}\n{source}\n\n{card['explanation']}\n\nParameters\n")
    for parameter in card["parameters"]:
        also = f" (also {', '.join(parameter['aliases'])})" if parameter["aliases"] else ""
        typer.echo(f"  --set method.params.{parameter['name']}={parameter['default']}{also}")
        typer.echo(f"      {parameter['description']}")
    if card["published"]:
        typer.echo("\nPublished success rates in %, each by its own protocol\n")
        for figure in card["published"]:
            typer.echo(f"  {figure['env']:<12}  {figure['text']:>8}  {figure['provenance']}")
    if card["card"]:
        typer.echo(f"\nCard: {card['card']}")


@app.command()
def check(
    name: Annotated[str | None, typer.Argument(help="Method; all of them if left out.")] = None, as_json: AsJson = False
) -> None:
    """Try a method on random episodes: what every method has to keep. Exit code 1 if anything does not hold."""
    from dataclasses import asdict

    from agentcredit.methods import registry
    from agentcredit.methods.check import check as try_out

    verdicts = {each: try_out(registry.get(each)) for each in ([name] if name else registry.names())}
    if as_json:
        print_json({each: [asdict(verdict) for verdict in found] for each, found in verdicts.items()})
    else:
        for each, found in verdicts.items():
            typer.echo(each)
            for verdict in found:
                sign = "pass" if verdict.passed and verdict.applies else " -- " if verdict.passed else "FAIL"
                typer.echo(f"  {sign}  {verdict.invariant}{f': {verdict.detail}' if verdict.detail else ''}")
    if not all(verdict.passed for found in verdicts.values() for verdict in found):
        raise typer.Exit(1)


def _card(name: str) -> dict[str, Any]:
    import inspect
    from dataclasses import asdict

    from agentcredit.config_toml import emit_value
    from agentcredit.methods import registry
    from agentcredit.report.published import published

    method = registry.get(name)
    module = inspect.getmodule(method)
    path = _CARDS / f"{name}.md"
    accepted = method.Params.keys()
    return {
        "name": name,
        "kind": method.kind,
        "summary": method.summary,
        "paper": asdict(method.paper),
        "explanation": inspect.cleandoc(module.__doc__ or "").replace("``", "") if module else "",
        "parameters": [
            {
                "name": field,
                "default": emit_value(info.default),
                "description": info.description or "",
                "aliases": sorted(key for key, target in accepted.items() if target == field and key != field),
            }
            for field, info in method.Params.model_fields.items()
        ],
        "published": [
            {**asdict(figure), "text": figure.text, "provenance": figure.provenance}
            for figure in published()
            if figure.method == name and figure.metric == "success"
        ],
        "card": str(path) if path.is_file() else "",
    }
