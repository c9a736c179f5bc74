"""``agentcredit envs``: which environments there are, setting them up, checking and playing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentcredit.cli.options import AsJson, print_json, say

if TYPE_CHECKING:
    from agentcredit.config import EnvConfig
    from agentcredit.envs.base import EnvClient, StepResult
    from agentcredit.envs.check import Report

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, set up, check and play environments.")

Name = Annotated[str, typer.Argument(help="Environment: see `envs list`.")]
Official = Annotated[bool, typer.Option("--official", help="The official games instead of generated ones.")]
Size = Annotated[str, typer.Option("--size", help="Size of generated games: small or full.")]


@app.command("list")
def list_environments(as_json: AsJson = False) -> None:
    """List every environment, built in and from installed plug-ins, and whether it is set up."""
    from agentcredit.envs import registry, setup

    rows = [
        {"name": name, "ready": setup.is_ready(name), "summary": registry.entry(name).summary}
        for name in registry.names()
    ]
    if as_json:
        print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        state = "ready     " if row["ready"] else "not set up"
        typer.echo(f"{row['name']:<{width}}  {state}  {row['summary']}")


@app.command()
def show(name: Name, size: Size = "small", official: Official = False, as_json: AsJson = False) -> None:
    """Show an environment: versions, data source, splits, limits and the instructions that a policy gets."""
    from dataclasses import asdict

    from agentcredit.envs import registry
    from agentcredit.envs.panels import role_of

    client = registry.connect(_config(name, size, official))
    try:
        spec = client.spec()
    finally:
        client.close()
    if as_json:
        print_json(asdict(spec) | {"interpreter": str(registry.interpreter(name))})
        return
    splits = ", ".join(f"{split} {n} ({role_of(spec.name, split)})" for split, n in spec.splits.items())
    typer.echo(f"{spec.name} {spec.version}: {spec.package}; {spec.data_source}")
    typer.echo(f"splits: {splits}")
    typer.echo(f"success: {spec.success_rule}; {spec.default_max_turns} turns; {spec.default_layout} layout")
    typer.echo(f"deterministic: {_yes(spec.deterministic)}; live episodes per process: {spec.instances_per_process}")
    typer.echo(f"task types: {', '.join(spec.task_types)}")
    typer.echo(f"interpreter: {registry.interpreter(name)}\n\n{spec.instructions}")


@app.command("setup")
def set_up(
    names: Annotated[list[str], typer.Argument(help="Environments: see `envs list`.")],
    official: Annotated[
        bool, typer.Option("--official", help="Also download the official data; gigabytes, from elsewhere.")
    ] = False,
) -> None:
    """Make an environment's own interpreter with its pinned packages; at once when it is there."""
    from agentcredit.envs import registry, setup

    for name in names:
        registry.entry(name)  # a wrong name ends the command before any other is built
    for name in names:
        typer.echo(setup.setup(name, official=official, say=say))


@app.command()
def check(
    name: Name,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Expert episodes over all splits.")] = 18,
    workers: Annotated[int, typer.Option("--workers", min=1, help="New workers that replay every episode.")] = 2,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Play tasks of this type; may be repeated. Default: all but the slowest to plan."),
    ] = None,
    size: Size = "small",
    official: Official = False,
    as_json: AsJson = False,
) -> None:
    """Check that experts succeed, that results repeat, and that the tasks are the known ones; measure the speed.

    Exit code 1 when something is not as declared.
    """
    from agentcredit.envs.base import EnvFailure
    from agentcredit.envs.check import check as run_check
    from agentcredit.errors import RunFailed

    try:
        report = run_check(
            _config(name, size, official), episodes=episodes, workers=workers, types=types or (), say=say
        )
    except EnvFailure as failure:
        raise RunFailed(f"The environment '{name}' failed in its check: {failure}") from failure
    if as_json:
        print_json(report.plain())
    else:
        _print_report(report)
    if report.problems:
        raise RunFailed(f"The environment '{name}' is not as declared. " + " ".join(report.problems))


@app.command()
def panel(
    name: Name,
    split: Annotated[str, typer.Option("--split", help="Split: see `envs show`.")],
    limit: Annotated[int, typer.Option("--limit", min=0, help="Only this many tasks; 0: all.")] = 0,
    size: Size = "small",
    official: Official = False,
) -> None:
    """Print a panel, `<id> <content hash>` per line: the text whose SHA-256 stands under tables."""
    from agentcredit.envs import registry
    from agentcredit.envs.panels import build_panel

    client = registry.connect(_config(name, size, official))
    try:
        found = build_panel(client, split, limit=limit)
    finally:
        client.close()
    say(f"{found.env} {found.name}: {len(found.tasks)} tasks of {found.data_source}, sha256 {found.sha256}")
    typer.echo(found.text, nl=False)


@app.command()
def play(
    name: Name,
    task: Annotated[str, typer.Option("--task", help="Task id; default: the first of the split.")] = "",
    split: Annotated[str, typer.Option("--split", help="Split of the task; default: that for training.")] = "",
    policy: Annotated[str, typer.Option("--policy", help="Who plays: you, random or expert.")] = "you",
    turns: Annotated[int, typer.Option("--turns", min=0, help="Turns at most; 0: the environment's own.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random policy.")] = 0,
    size: Size = "small",
    official: Official = False,
) -> None:
    """Play one task in the terminal. An empty line lists the admissible actions, `quit` ends."""
    from agentcredit.envs import registry
    from agentcredit.envs.panels import split_for
    from agentcredit.errors import UsageError, nearest

    if policy not in ("you", "random", "expert"):
        raise UsageError(f"--policy {policy!r} is not known.{nearest(policy, ['you', 'random', 'expert'])}")
    listing = policy != "expert"
    client = registry.connect(_config(name, size, official).model_copy(update={"show_admissible": listing}))
    try:
        spec = client.spec()
        infos = {info.id: info for info in client.tasks(split or split_for(name, "train"))}
        chosen = task or next(iter(infos))
        if chosen not in infos:
            raise UsageError(f"'{name}' has no task '{chosen}' in split '{split or split_for(name, 'train')}'.")
        typer.echo(f"Task {chosen} ({infos[chosen].type}): {infos[chosen].goal}\n")
        _play(client, chosen, _actor(client, chosen, policy, seed), turns or spec.default_max_turns)
    finally:
        client.close()


def _play(client: EnvClient, task_id: str, act: Any, turns: int) -> None:
    episode = client.open(task_id)
    seen = episode.reset().result()
    typer.echo(seen.observation)
    for turn in range(turns):
        if seen.done or (action := act(turn, seen)) is None:
            break
        seen = episode.step(action).result()
        mark = "" if seen.valid else "  [not valid]"
        typer.echo(f"\n[{turn + 1}/{turns}] > {action}{mark}\n{seen.observation}")
        if seen.reward:
            typer.echo(f"(reward {seen.reward:+.2f}, score {seen.score:.2f})")
    episode.close()
    typer.echo(f"\n{'Success' if seen.success else 'No success'}, score {seen.score:.2f}.")


def _actor(client: EnvClient, task_id: str, policy: str, seed: int) -> Any:
    """A function of the turn and of what is seen: the next action, or None to stop."""
    if policy == "you":
        return _ask
    from agentcredit.policies.scripted import ExpertPolicy, RandomPolicy

    player = RandomPolicy() if policy == "random" else ExpertPolicy(client, [task_id])

    def act(turn: int, seen: StepResult) -> str:
        thought, action = player.act(task_id, turn, seen, (seed, task_id, turn))
        if thought:
            typer.echo(f"\n<think> {thought} </think>")
        return action

    return act


def _ask(turn: int, seen: StepResult) -> str | None:
    while True:
        try:
            words = input("\n> ").strip()
        except EOFError:
            return None
        if words == "quit":
            return None
        if words:
            return words
        typer.echo("\n".join(seen.admissible or ["(this environment lists no actions)"]))


def _print_report(report: Report) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    console.print(
        f"[bold]{report.env}[/bold] {report.version}: {report.package}; {report.data_source}", highlight=False
    )
    splits = Table("split", "role", "tasks", "panel sha256", "committed panel", box=None)
    for split in report.splits:
        splits.add_row(split.split, split.role, str(split.tasks), split.panel_sha256[:16], _yes(split.committed))
    experts = Table(Column("task", overflow="fold"), "type", "split", "expert steps", "score", "solved", box=None)
    for one in report.experts:
        steps = f"{one.steps}" + (f" (over {one.turns} turns)" if one.steps > one.turns else "")
        experts.add_row(one.task_id, one.type, one.split, steps, f"{one.score:.2f}", _yes(one.success))
    console.print(splits, experts, sep="\n")
    found, speed = report.determinism, report.speed
    won = sum(one.success for one in report.experts)
    console.print(f"expert: {won} of {len(report.experts)} solved", highlight=False)
    console.print(
        f"deterministic: declared {_yes(found.declared)}, found {_yes(found.found)} "
        f"({found.episodes} episodes, {found.steps} steps, {found.workers} new workers) {found.difference}",
        highlight=False,
    )
    cached = "" if speed.steps_per_second_cached is None else f", {speed.steps_per_second_cached:.0f} with the cache"
    console.print(
        f"speed of one process: {speed.steps_per_second:.1f} steps/s{cached}; reset {speed.reset_seconds:.2f} s",
        highlight=False,
    )


def _config(name: str, size: str, official: bool) -> EnvConfig:
    from agentcredit.config import EnvConfig
    from agentcredit.envs import registry
    from agentcredit.errors import UsageError, nearest

    registry.entry(name)
    if size not in ("small", "full"):
        raise UsageError(f"--size {size!r} is not known.{nearest(size, ['small', 'full'])}")
    return EnvConfig.model_validate({"name": name, "size": size, "official": official})


def _yes(value: bool) -> str:
    return "yes" if value else "no"
