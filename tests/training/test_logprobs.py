from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentcredit.errors import UsageError
from agentcredit.training.logprobs import TokenScorer
from agentcredit.training.packing import collate

VOCAB = 97
LENGTHS = [5, 40, 9, 17]


def packed(rows):
    return collate(rows, [np.zeros(len(row)) for row in rows], range(len(rows)))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_elements", [1, 40 * 32, 1 << 24])
def test_agrees_with_full_logits_row_by_row(make_model, make_rows, naive_logprobs, temperature, chunk_elements):
    model, rows = make_model(), make_rows(LENGTHS)
    batch = packed(rows)
    assert 0 < batch.n_free < len(batch.target_K)
    logprob, _ = TokenScorer(model, temperature, chunk_elements)(batch)
    brute = naive_logprobs(model, rows, temperature)
    expected = torch.stack([brute[b][n] for b, n in zip(batch.row_K, batch.position_K, strict=True)])
    torch.testing.assert_close(logprob, expected, rtol=0, atol=2e-6)


def test_gradients_do_not_depend_on_the_chunks(make_model, make_rows):
    batch = packed(make_rows(LENGTHS))
    factor = torch.randn(len(batch.target_K), generator=torch.Generator().manual_seed(1))
    gradients = []
    for chunk_elements in (1, 40 * 32, 1 << 24):
        model = make_model()
        logprob, _ = TokenScorer(model, 1.0, chunk_elements)(batch)
        (factor * logprob).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, whole in gradients[2].items():
        assert whole.abs().max() > 0
        for chunked in gradients[:2]:
            torch.testing.assert_close(chunked[name], whole, rtol=1e-4, atol=1e-6 * float(whole.abs().max()))


def test_restricted_gradient_agrees_with_full_logits(make_model, make_rows, naive_logprobs):
    rows = make_rows(LENGTHS, restricted=1.0, ce=0.0)
    batch = packed(rows)
    assert batch.n_free == 0
    ours, theirs = make_model(), make_model()
    TokenScorer(ours, 0.7)(batch)[0].sum().backward()
    brute = naive_logprobs(theirs, rows, 0.7)
    sum(brute[b][n] for b, n in zip(batch.row_K, batch.position_K, strict=True)).backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_a_bias_of_the_head_counts(make_model, make_rows, naive_logprobs):
    model, rows = make_model(tie_word_embeddings=False), make_rows([12], restricted=0.5, ce=0.0)
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)))
    batch = packed(rows)
    assert 0 < batch.n_free < len(batch.target_K)
    brute = naive_logprobs(model, rows)[0]
    torch.testing.assert_close(TokenScorer(model, 1.0)(batch)[0], brute[batch.position_K], rtol=0, atol=2e-6)


def test_a_forced_token_is_certain(make_model, make_rows):
    (row,) = make_rows([9], restricted=0.0, ce=0.0)
    forced = tuple((int(token),) if sampled else None for token, sampled in zip(row.ids, row.sampled, strict=True))
    logprob, entropy = TokenScorer(make_model(), 1.0)(packed([dataclasses.replace(row, allowed=forced)]))
    assert logprob.tolist() == [0.0] * 3
    assert entropy.tolist() == [0.0] * 3


def test_entropy_is_that_of_the_sampling_distribution_and_has_no_graph(make_model, make_rows):
    model, rows = make_model(), make_rows([12], restricted=0.5, ce=0.0)
    batch = packed(rows)
    logprob, entropy = TokenScorer(model, 0.8)(batch)
    assert logprob.requires_grad
    assert not entropy.requires_grad
    logits = model(input_ids=torch.tensor(batch.ids_BN)).logits[0].detach().double() / 0.8
    for k, position in enumerate(batch.position_K):
        line = logits[position - 1]
        if k >= batch.n_free:
            line = line[batch.allowed_K[k - batch.n_free]]
        p = line.softmax(0)
        assert entropy[k].item() == pytest.approx(-(p * p.log()).sum().item(), abs=1e-5)


class LargestFloat(TorchDispatchMode):
    """Elements of the largest float32 tensor that any operation gave, forward or backward."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32:
                self.largest = max(self.largest, leaf.numel())
        return out


@pytest.mark.parametrize("restricted", [0.0, 0.5])
def test_logits_of_all_tokens_are_never_held_at_once(make_model, make_rows, restricted):
    n_vocab, chunk_elements = 4096, 1 << 15
    model = make_model(vocab_size=n_vocab)
    batch = packed(make_rows([150] * 4, restricted=restricted, ce=0.0, vocab=n_vocab))
    whole = len(batch.target_K) * n_vocab
    assert whole > 8 * n_vocab * 32, "the head's own weights must be far smaller than what is ruled out"

    def peak(chunk):
        with LargestFloat() as seen:
            TokenScorer(model, 1.0, chunk)(batch)[0].sum().backward()
        return seen.largest

    # the head's gradient [V, D] is the largest tensor that is left
    assert peak(chunk_elements) == n_vocab * 32
    if not restricted:
        assert peak(whole) == whole, "the meter must see a full logits tensor where there is one"


def test_a_soft_cap_on_the_logits_is_refused(make_model):
    model = make_model()
    plain = model.forward

    def capped(*args, **kwargs):
        out = plain(*args, **kwargs)
        out.logits = 30 * torch.tanh(out.logits / 30)
        return out

    model.forward = capped
    with pytest.raises(UsageError, match="changes its logits after the output head"):
        TokenScorer(model, 1.0)


def test_models_of_other_families(make_rows, naive_logprobs):
    from transformers import CohereConfig, CohereForCausalLM, LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False)).eval()
    rows = make_rows([14])
    batch = packed(rows)
    brute = naive_logprobs(llama, rows)[0]
    torch.testing.assert_close(TokenScorer(llama, 1.0)(batch)[0], brute[batch.position_K], rtol=0, atol=2e-6)
    # Cohere multiplies its logits by config.logit_scale
    with pytest.raises(UsageError, match="CohereForCausalLM changes its logits"):
        TokenScorer(CohereForCausalLM(CohereConfig(**shape, logit_scale=0.0625)), 1.0)
