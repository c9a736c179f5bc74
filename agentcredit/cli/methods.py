"""``agentcredit methods``: which methods there are, and what each one's parameters mean."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agentcredit.cli.options import AsJson, print_json

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
    """Show a method: its paper, and every parameter with its default."""
    card = _card(name)
    if as_json:
        print_json(card)
        return
    paper = card["paper"]
    source = ", ".join(
        filter(None, [paper["title"], paper["venue"], f"arXiv {paper['arxiv']}" if paper["arxiv"] else ""])
    )
    typer.echo(f"{card['name']} ({card['kind']}): {card['summary']}\n{source}\n")
    for parameter in card["parameters"]:
        also = f" (also {', '.join(parameter['aliases'])})" if parameter["aliases"] else ""
        typer.echo(f"  --set method.params.{parameter['name']}={parameter['default']}{also}")
        typer.echo(f"      {parameter['description']}")


def _card(name: str) -> dict[str, Any]:
    from dataclasses import asdict

    from agentcredit.config_toml import emit_value
    from agentcredit.methods import registry

    method = registry.get(name)
    accepted = method.Params.keys()
    return {
        "name": name,
        "kind": method.kind,
        "summary": method.summary,
        "paper": asdict(method.paper),
        "parameters": [
            {
                "name": field,
                "default": emit_value(info.default),
                "description": info.description or "",
                "aliases": sorted(key for key, target in accepted.items() if target == field and key != field),
            }
            for field, info in method.Params.model_fields.items()
        ],
    }
