"""Our engine answers as the package's unchanged classes do, and translates a game once per machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alfworld


def test_random_walks_equal_those_in_the_packages_own_classes(inside: Callable[..., Any]) -> None:
    names = [["small", "train", 3], ["full", "train", 2]]
    stock = inside("walks", names, 30, True, hash_seed=1)
    ours = inside("walks", names, 30, False, hash_seed=2)
    for expected, met in zip(stock, ours, strict=True):
        assert met == expected
    assert any(step[1] == "Nothing happens." for met in ours for step in met[1:])


def test_a_game_is_translated_once_and_a_broken_file_is_made_anew(inside: Callable[..., Any], tmp_path: Path) -> None:
    name = ["small", "train", 5]
    first = inside("translations", name, home=tmp_path)
    assert (first["made"], first["kept"]) == (1, 1)
    assert inside("translations", name, home=tmp_path) == first | {"made": 0}
    (file,) = (tmp_path / "cache" / "alfworld" / "translations").glob("*/*.sas")
    file.write_bytes(file.read_bytes()[:100])
    assert inside("translations", name, home=tmp_path) == first


def test_episodes_of_one_process_do_not_touch_each_other(inside: Callable[..., Any]) -> None:
    assert all(inside("together_and_alone", "small", 6, 12))


def test_what_follows_depends_on_the_full_state_and_the_action_alone(inside: Callable[..., Any]) -> None:
    counts = inside("transitions", "small", 3, 40, 30)
    assert counts["repeats"] > 50
    assert counts["different"] == 0
