"""What the embedded policy's kept cache and restricted sampling are worth, in one run.

    python benchmarks/bench_rollout.py

Dialogues of random observations, played by a random model of the tiny shape. Processor seconds of one thread, the best of
several rounds taken in turns.
"""

import time
from typing import Any

import numpy as np

SESSIONS, TURNS, OBSERVATION_WORDS, NEW_TOKENS, ROUNDS = 16, 10, 30, 24, 2
NOUNS = [f"{kind} {number}" for kind in ("apple", "bowl", "cabinet", "desk", "egg", "fridge") for number in range(1, 5)]
ACTIONS = tuple(sorted([f"go to {noun}" for noun in NOUNS] + [f"take {noun}" for noun in NOUNS] + ["look"]))


def make_policy() -> Any:
    import torch

    from agentcredit.config import TinyConfig
    from agentcredit.policies.dialogue import Template
    from agentcredit.policies.tiny import new_model, train_tokenizer
    from agentcredit.policies.transformers import TransformersPolicy

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = train_tokenizer([" ; ".join(ACTIONS)] * 4, 512)
    template = Template(tokenizer, "tiny")
    return TransformersPolicy(new_model(TinyConfig(), tokenizer, 2048).eval(), template)


def dialogue(policy: Any, kept: bool, restricted: bool) -> tuple[float, int]:
    """Processor seconds of all turns of all sessions, and how many tokens were answered."""
    from agentcredit.policies.base import Request

    rng = np.random.default_rng(0)
    words = [word for action in ACTIONS for word in action.split()]

    def observe() -> str:
        return " ".join(rng.choice(words, OBSERVATION_WORDS))

    contexts = {f"s{n}": policy.template.opening("", observe()) for n in range(SESSIONS)}
    tokens = 0
    began = time.process_time()
    for turn in range(TURNS):
        policy.submit(
            [
                Request(
                    session, list(context), ("bench", session, turn), NEW_TOKENS, 1.0, ACTIONS if restricted else None
                )
                for session, context in contexts.items()
            ]
        )
        for response in policy.collect():
            contexts[response.session] += [*response.ids, *policy.template.reply(observe(), response.finished)]
            tokens += len(response.ids)
            if not kept:
                policy.release(response.session)
    seconds = time.process_time() - began
    for session in contexts:
        policy.release(session)
    return seconds, tokens


def main() -> None:
    policy = make_policy()
    cases = {
        "cache kept, restricted actions": (True, True),
        "whole context each turn, restricted": (False, True),
        "cache kept, free": (True, False),
        "whole context each turn, free": (False, False),
    }
    best = dict.fromkeys(cases, float("inf"))
    tokens = dict.fromkeys(cases, 0)
    for _ in range(ROUNDS):
        for name, case in cases.items():
            seconds, tokens[name] = dialogue(policy, *case)
            best[name] = min(best[name], seconds)
    print(f"{SESSIONS} dialogues of {TURNS} turns, at most {NEW_TOKENS} tokens an answer")
    first = best["cache kept, restricted actions"]
    for name, seconds in best.items():
        rate = tokens[name] / seconds
        print(f"  {name:<36}  {seconds:7.3f} s  {rate:6.0f} tokens/s  {seconds / first:5.2f} × the first")


if __name__ == "__main__":
    main()
