"""``agentcredit methods``: which methods there are, and what each one's parameters mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentcredit.cli.options import AsJson, print_json, say

if TYPE_CHECKING:
    from agentcredit.stats.intervals import Interval

_CARDS = Path(__file__).parents[2] / "docs" / "methods"
"""Method cards, where the program runs from its source tree."""

CHOICES = ("Choices", "Why these defaults")
"""Titles of the section of a card that declares deviations and readings."""

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
    if card["clashes"]:
        typer.echo("\nNot together with\n")
        for other, reason in card["clashes"].items():
            typer.echo(f"  {other}: {reason}")
    if card["published"]:
        typer.echo("\nPublished success rates in %, each by its own protocol\n")
        for figure in card["published"]:
            typer.echo(f"  {figure['env']:<12}  {figure['text']:>8}{figure['within']}  {figure['provenance']}")
    if card["choices"]:
        typer.echo(f"\nDeviations and readings\n\n{card['choices']}")
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


@app.command()
def distill(
    env: Annotated[str, typer.Option("--env", help="Environment: see `envs list`.")],
    out: Annotated[Path, typer.Option("--out", help="JSON file to write; task types that it has already are kept.")],
    url: Annotated[str, typer.Option("--url", help="OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1.")],
    model: Annotated[str, typer.Option("--model", help="Model, as the endpoint names it.")],
    key_env: Annotated[
        str, typer.Option("--key-env", metavar="NAME", help="Variable with the endpoint's key; it is stored nowhere.")
    ] = "",
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Only this task type; may be repeated. Default: all.")
    ] = None,
    demos: Annotated[int, typer.Option("--demos", min=0, help="Expert episodes shown per task type.")] = 2,
    size: Annotated[str, typer.Option("--size", help="Size of generated games: small or full.")] = "small",
) -> None:
    """Have a language model write reference graphs for proas: one question a task type, a second if it is not valid.

    The file is written after every task type; repeating the command goes on where it stopped.
    """
    from agentcredit.config import EnvConfig
    from agentcredit.envs import registry
    from agentcredit.envs.panels import split_for
    from agentcredit.errors import UsageError, nearest
    from agentcredit.files import atomic_write_json
    from agentcredit.methods.distill import write_graph
    from agentcredit.methods.distilled import Document, checked, read_document
    from agentcredit.methods.predicates import vocabulary
    from agentcredit.policies.chat import Chat

    words, chat = vocabulary(env), Chat(url, model, key_env)
    document = read_document(out) if out.exists() else Document(format=1, env=env, source=model, graphs={})
    if document.env != env:
        raise UsageError(f"{out} has graphs of '{document.env}', not of '{env}': write to another --out.")
    checked(document, str(out))
    client = registry.connect(EnvConfig.model_validate({"name": env, "size": size}))
    try:
        spec = client.spec()
        for kind in types or []:
            if kind not in spec.task_types:
                raise UsageError(f"'{env}' has no task type '{kind}'.{nearest(kind, spec.task_types)}")
        tasks = client.tasks(split_for(env, "train"))
        for kind in types or spec.task_types:
            if kind in document.graphs:
                say(f"{kind}: already in {out}")
                continue
            chosen = [task for task in tasks if task.type == kind][:demos]
            episodes = zip(chosen, client.experts([task.id for task in chosen]), strict=True)
            shown = [(task.goal, episode) for task, episode in episodes if episode is not None]
            written = write_graph(chat, spec, kind, words, shown)
            document = document.model_copy(update={"graphs": {**document.graphs, kind: written}})
            atomic_write_json(out, document.model_dump(mode="json"))
            say(f"{kind}: {len(written.milestones)} milestones, {len(written.edges)} edges")
    finally:
        client.close()
    typer.echo(str(out))


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
        "clashes": {
            other: reason for other in registry.names() if (reason := registry.clash(method, registry.get(other)))
        },
        "published": [
            {**asdict(figure), "text": figure.text, "within": _within(figure.interval), "provenance": figure.provenance}
            for figure in published()
            if figure.method == name and figure.metric == "success"
        ],
        "choices": _choices(path.read_text(encoding="utf-8")) if path.is_file() else "",
        "card": str(path) if path.is_file() else "",
    }


def _within(interval: Interval | None) -> str:
    return f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" if interval else ""


def _choices(card: str) -> str:
    """The card's section on where it deviates from its source and which reading it takes."""
    for section in card.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        if title in CHOICES:
            return text.strip()
    return ""
