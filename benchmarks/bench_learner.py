"""What the learner's two economies are worth: micro-batches of like length, and logits of the tokens that need them.

    python benchmarks/bench_learner.py

Processor seconds of one thread, the best of several rounds taken in turns, and the largest
memory of a process over what it was before.
"""

import ctypes
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

EPISODES = 16
VOCAB_TINY, VOCAB_LARGE = 2048, 49_152
M_MMAP_THRESHOLD = -3  # glibc's malloc.h
BUDGETS = (1024, 2048, 4096, 8192, 16_384)


def make_model(vocab: int) -> Any:
    """A random Qwen2 of the tiny model's shape."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def make_rows(lengths: np.ndarray, vocab: int) -> list[Any]:
    """Dialogues: of every 60 tokens the last 20 are a response."""
    from agentcredit.training.rows import Row

    rng = np.random.default_rng(0)
    rows = []
    for length in lengths:
        sampled = np.arange(length) % 60 >= 40
        old = np.where(sampled, -np.log(vocab), 0).astype(np.float32)
        advantage = np.where(sampled, rng.normal(), 0).astype(np.float32)
        rows.append(Row(rng.integers(0, vocab, length), sampled, old, advantage, np.zeros(length, np.float32)))
    return rows


def best(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Processor seconds of each case, the best of ``rounds``, taken in turns, after a first call that warms up."""
    seconds = dict.fromkeys(cases, float("inf"))
    next(iter(cases.values()))()
    for _ in range(rounds):
        for name, work in cases.items():
            began = time.process_time()
            work()
            seconds[name] = min(seconds[name], time.process_time() - began)
    return seconds


def budgets(answers: Any) -> None:
    """One update of episodes of 60 to 900 tokens, at several sizes of a micro-batch."""
    from agentcredit.config import LossConfig, OptimConfig, TrainConfig
    from agentcredit.training.learner import Learner

    model = make_model(VOCAB_TINY)
    rows = make_rows(np.random.default_rng(1).integers(60, 900, EPISODES), VOCAB_TINY)
    cases: dict[str, Callable[[], object]] = {}
    for budget in BUDGETS:
        train = TrainConfig(tokens_per_microbatch=budget)
        learner = Learner(model, LossConfig(), OptimConfig(lr=1e-6), train)
        cases[f"micro-batches of {budget:>6} tokens"] = lambda learner=learner: learner.update(rows, 0)
    tokens = sum(map(len, rows))
    answers.put([(name, value, f"{tokens / value:8.0f} tokens/s") for name, value in best(cases, 2).items()])


def logits(answers: Any, how: str, memory: bool) -> None:
    """The gradient of one micro-batch, 1024 tokens over a vocabulary of 49,152: seconds, or MiB above what it began with."""
    import torch

    from agentcredit.training.logprobs import TokenScorer
    from agentcredit.training.packing import collate

    if memory and sys.platform == "linux":
        # Else the allocator keeps freed blocks of a few megabytes, and the peak counts what nobody uses.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    model = make_model(VOCAB_LARGE)
    rows = make_rows(np.full(4, 256), VOCAB_LARGE)
    elements = {"in one piece": 1 << 40, "in chunks": 1 << 22}.get(how, 1)
    scorer = TokenScorer(model, 1.0, elements)

    def work(count: int = len(rows)) -> None:
        batch = collate(rows, [row.sampled / 1024 for row in rows], range(count))
        advantage = torch.tensor(batch.advantage_K)
        model.zero_grad()
        if how == "all tokens":
            everything = torch.log_softmax(model(input_ids=torch.tensor(batch.ids_BN)).logits.float(), dim=-1)
            logprob = everything[batch.row_K, batch.position_K - 1, batch.target_K]
        else:
            logprob, _ = scorer(batch)
        (-advantage * logprob).sum().backward()

    work(1)  # so that what torch loads at its first backward pass is not counted as memory of the loss
    if not memory:
        answers.put(best({"": work}, 2)[""])
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    answers.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def measured(work: Callable[..., None], *arguments: Any) -> Any:
    """What ``work`` measures in a process of its own, so that its memory is its own."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=work, args=(answers, *arguments))
    process.start()
    result = answers.get()
    process.join()
    return result


def show(title: str, rows: list[tuple[str, float, str]]) -> None:
    print(title)
    first = rows[0][1]
    for name, seconds, more in rows:
        print(f"  {name:<36}  {seconds:7.3f} s  {more:>18}  {seconds / first:5.2f} × the first")


def main() -> None:
    make_model(64)  # imports torch and transformers once, before the processes are forked
    show(f"One update, {EPISODES} episodes of 60 to 900 tokens", measured(budgets))
    ways = []
    for how in ("all tokens", "in one piece", "in chunks"):
        name = "logits of all tokens" if how == "all tokens" else f"of the sampled tokens, {how}"
        ways.append((name, measured(logits, how, False), f"{measured(logits, how, True):8.0f} MiB"))
    show("Gradient of 1024 tokens, 29 % of them sampled, vocabulary 49,152", ways)


if __name__ == "__main__":
    main()
