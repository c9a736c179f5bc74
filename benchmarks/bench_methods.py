"""What each method costs: the time that it adds to a training step of GRPO's, on the same episodes.

    python benchmarks/bench_methods.py                   every method, on experiments/cpu/efficiency.toml
    python benchmarks/bench_methods.py cope ahead        these

GRPO plays and trains; at every step each method, on its usual base, credits the same episodes and makes one update from the
same weights, which are then put back: twice, and the better time counts. Medians over steps, in processor seconds of one
thread; the order of the methods turns with the steps. CoPE is there three times: with contexts that forecasts share, with
contexts written out, and as in a step in which it also measures its forecasts, which is one of ten. What a method plays
beyond the step's episodes (dapo) is not in it.
"""

import copy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FIRST, STEPS = 2, 7
"""The training steps that are timed. In step 1, as in every tenth after it, some methods measure themselves."""
ROUNDS = 2
BASELINE = "grpo"
CONFIG = Path(__file__).parent.parent / "experiments" / "cpu" / "efficiency.toml"


def assembled(folder: Path) -> Any:
    """A run of GRPO that is about to take its first step, without an evaluation."""
    from agentcredit.assembly import open_stage
    from agentcredit.config_sources import resolve
    from agentcredit.methods.registry import build
    from agentcredit.progress import Silent
    from agentcredit.rundir import RunDir
    from agentcredit.training.loop import assemble

    given = {"method.name": (BASELINE, "bench"), "out": (folder, "bench"), "train.save_episodes": (False, "bench")}
    config = resolve([CONFIG], flags=given).config
    with RunDir.open(config) as run:
        return assemble(config, run, open_stage(config, None), build(config.method), Silent())


def composition(trainer: Any, name: str, **more: Any) -> Any:
    """The method with the parameters of the configuration that it knows, and these."""
    from agentcredit.methods.registry import DEFAULT_BASE, build, get

    known = get(name).Params.keys() | (get(DEFAULT_BASE).Params.keys() if get(name).kind != "estimator" else {})
    params = {key: value for key, value in trainer.config.method.params.items() if key in known} | more
    return build(trainer.config.method.model_copy(update={"name": name, "params": params}))


def seconds(trainer: Any, method: Any, groups: list[Any], step: int) -> tuple[float, float]:
    """Processor seconds of the credit and of the update."""
    from agentcredit.training.rows import build_rows

    began = time.process_time()
    trainer.method = method
    assignment = trainer.credit(groups, step)
    credited = time.process_time()
    trainer.learner.update(build_rows(groups, assignment), step - 1)
    return credited - began, time.process_time() - credited


def main() -> None:
    import torch

    from agentcredit.methods.registry import names

    torch.set_num_threads(1)
    wanted = sys.argv[1:] or names()
    with tempfile.TemporaryDirectory() as folder:
        trainer = assembled(Path(folder))
        try:
            measure(trainer, [BASELINE, *(name for name in wanted if name != BASELINE)])
        finally:
            trainer.stage.client.close()


def measure(trainer: Any, wanted: list[str]) -> None:
    cases = {name: (composition(trainer, name), trainer.learner.train) for name in wanted}
    if "cope" in cases:
        written = trainer.learner.train.model_copy(update={"share_prefixes": False})
        cases["cope, written out"] = (composition(trainer, "cope"), written)
        cases["cope, measuring"] = (composition(trainer, "cope", log_every=1, probe_every=1), trainer.learner.train)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    playing: list[float] = []
    for step in range(FIRST, FIRST + STEPS):
        began = time.process_time()
        groups, _ = trainer.collect(step)
        playing.append(time.process_time() - began)
        before = copy.deepcopy(trainer.learner.state_dict())
        order = list(cases)[step % len(cases) :] + list(cases)[: step % len(cases)]
        trained = before
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in order}
        for name in order * ROUNDS:
            method, trainer.learner.train = cases[name]
            trainer.learner.load_state_dict(before)
            rounds[name].append(seconds(trainer, method, groups, step))
            if name == BASELINE:
                trained = copy.deepcopy(trainer.learner.state_dict())
        for name, times in rounds.items():
            spent[name].append(min(times, key=sum))
        trainer.learner.load_state_dict(trained)
    report(spent, statistics.median(playing))


def report(spent: dict[str, list[tuple[float, float]]], playing: float) -> None:
    median = {name: statistics.median(map(sum, times)) for name, times in spent.items()}
    whole = playing + median[BASELINE]
    print(
        f"A step of {BASELINE}: {playing:.2f} s of playing, {median[BASELINE]:.2f} s of credit and update; {STEPS} steps"
    )
    for name, times in spent.items():
        extra = statistics.median(sum(mine) - sum(base) for mine, base in zip(times, spent[BASELINE], strict=True))
        credit, update = (statistics.median(part) for part in zip(*times, strict=True))
        print(f"  {name:<20}{credit:>8.2f} s credit{update:>8.2f} s update{100 * extra / whole:>+9.1f} % of the step")


if __name__ == "__main__":
    main()
