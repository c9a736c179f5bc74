"""``agentcredit credit``: another method's credit for the episodes that a run has stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentcredit.cli.options import AsJson, Out, RunName, Sets, out_folder, print_json, say
from agentcredit.errors import UsageError

if TYPE_CHECKING:
    from agentcredit.config import MethodConfig
    from agentcredit.recredit import Recredited, Step, Totals
    from agentcredit.rundir import RunDir


def credit(
    run: RunName,
    method: Annotated[
        str, typer.Option(help="Method, or several joined by +; default: the run's own.", show_default=False)
    ] = "",
    base: Annotated[str, typer.Option(help="Group estimator below it; default: grpo.", show_default=False)] = "",
    sets: Sets = None,
    step: Annotated[
        int | None, typer.Option(min=1, help="One step only; the ones before it still teach the method.")
    ] = None,
    episode: Annotated[
        str, typer.Option(metavar="STEP/TASK/SIBLING", help="Show one episode turn by turn; its beginning is enough.")
    ] = "",
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out-file",
            help="Where the credit by token is stored, also of one step; default: the run's folder.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Give a run's stored episodes the credit of any method, beside the credit that they were trained on.

    Nothing is played or trained. Methods that ask the model get the checkpoint that played the step, or the nearest that is
    kept, and the output says which. With all steps the credit by token is stored in the run's folder (docs/credit.md).
    """
    from agentcredit.methods.registry import build
    from agentcredit.offline import Offline
    from agentcredit.recredit import Totals, credit_path, find_episode, recredit, store
    from agentcredit.rundir import RunDir

    found = RunDir.find(out_folder(out), run)
    composition = build(_method(found, method, base, sets or []))
    label = composition.label()
    wanted = ""
    if episode and out_file is not None:
        raise UsageError("--episode shows one episode and stores nothing: give --step with --out-file instead.")
    if episode:
        at, wanted = find_episode(found, episode)
        if step not in (None, at):
            raise UsageError(f"Episode {wanted} is of step {at}, not of step {step}: leave out --step or --episode.")
        step = at
    with Offline(found) as offline:
        steps = recredit(found, composition, offline, step)
        if wanted:
            (only,) = steps
            (one,) = (each for each in only.episodes if each.id == wanted)
            _show_episode(found, label, only, one, as_json)
            return
        totals = Totals()
        path = out_file if out_file is not None or step is not None else credit_path(found, composition)
        if path is not None:
            totals = store(path, found, composition, steps)
        else:
            for each in steps:
                totals.add(each)
        _show_summary(found, label, totals, offline.weights_of, path, as_json)


def _method(run: RunDir, name: str, base: str, sets: list[str]) -> MethodConfig:
    """The run's own method, or the one named with its own defaults; ``--set method.…`` on top. The penalty is the run's."""
    from agentcredit.config_sources import resolve

    own = run.config.method
    resolved = resolve(sets=sets)
    given = [key for key in resolved.origins if resolved.origins[key].startswith("--set")]
    foreign = [key for key in given if not key.startswith("method.")]
    if foreign:
        raise UsageError(f"--set {foreign[0]}: a stored run's credit changes with method.* alone.")
    update: dict[str, Any] = {}
    if name or base:
        update |= {"name": name or own.name, "base": base, "params": {} if name else own.params}
    method = own.model_copy(update=update)
    changed = {key.removeprefix("method."): _value(resolved.config, key) for key in given}
    params = {key.removeprefix("params."): changed.pop(key) for key in list(changed) if key.startswith("params.")}
    return method.model_copy(update={**changed, "params": {**method.params, **params}})


def _value(config: Any, key: str) -> Any:
    section, _, rest = key.partition(".")
    field, _, name = rest.partition(".")
    value = getattr(getattr(config, section), field)
    return value[name] if name else value


def _show_summary(
    run: RunDir, label: str, totals: Totals, weights: dict[int, str], path: Path | None, as_json: bool
) -> None:
    values, logged = totals.summary(), totals.metrics()
    if as_json:
        record = {"run": run.name, "label": label, "summary": values, "metrics": logged, "weights": weights}
        print_json(record | ({"path": str(path)} if path else {}))
        return
    typer.echo(f"{run.name}: {label}")
    typer.echo(f"{values['episodes']:.0f} episodes, {values['turns']:.0f} turns")
    if "abs_advantage" in values:
        typer.echo(
            f"mean |advantage| of a turn: {values['abs_advantage']:.4g}, of the run's own {values['abs_advantage_original']:.4g}"
        )
        correlation = f"; correlation {values['correlation']:.3f}" if "correlation" in values else ""
        typer.echo(
            f"turns: {values['share_equal']:.1%} as they were, {values['share_silenced']:.1%} silenced, "
            f"{values['share_turned']:.1%} turned round{correlation}"
        )
    own = {name: value for name, value in logged.items() if not name.startswith("credit/")}
    for name in sorted(own):
        typer.echo(f"  {name:<36} {own[name]:.4g}")
    if weights:
        typer.echo(_weights_line(weights))
    if path is not None:
        say(f"Stored in {path}")


def _show_episode(run: RunDir, label: str, step: Step, one: Recredited, as_json: bool) -> None:
    from agentcredit.recredit import to_json

    if as_json:
        print_json({"run": run.name, "label": label, "weights": step.weights, **to_json(one)})
        return
    typer.echo(f"{one.id}: {one.episode.task.goal}")
    typer.echo(f"{'success' if one.episode.success else one.episode.stop_reason.value}, {label}")
    if step.weights:
        typer.echo(_weights_line({step.step: step.weights}))
    actions = [turn.action or "(none)" for turn in one.episode.turns]
    width = max(6, *(min(48, len(action)) for action in actions)) if actions else 6
    has_ce = one.credit.ce_response_TN is not None or one.credit.ce_prompt_TN is not None
    typer.echo(
        f"turn  {'action':<{width}}  valid  reward  original  {'credit':>8}{'  cross-entropy' if has_ce else ''}"
    )
    for t, (turn, action) in enumerate(zip(one.episode.turns, actions, strict=True)):
        shown = action if len(action) <= width else action[: width - 1] + "…"
        old = f"{one.original_T[t]:+.4f}" if t < len(one.original_T) else "–"
        weight = sum(
            float(stream[t].sum())
            for stream in (one.credit.ce_response_TN, one.credit.ce_prompt_TN)
            if stream is not None
        )
        ce = f"  {weight:13.4g}" if has_ce else ""
        typer.echo(
            f"{t:>4}  {shown:<{width}}  {'yes' if turn.valid else 'no':<5}  {turn.reward:>6.3g}  {old:>8}  "
            f"{one.advantage_T[t]:>+8.4f}{ce}"
        )


def _weights_line(weights: dict[int, str]) -> str:
    """Which weights a method asked: those that played the steps, or others, whose log-probabilities are not the rollout's."""
    others = {step: name for step, name in weights.items() if not name.startswith("=")}
    if not others:
        return "model: the weights that played each step"
    names = sorted(set(others.values()))
    return (
        f"model: for {len(others)} of {len(weights)} steps the nearest weights that are kept ({', '.join(names)}), not those "
        "that played them (train.keep_checkpoints)"
    )
