from __future__ import annotations

from pathlib import Path

import pytest

from agentcredit.envs.client import PoolClient
from agentcredit.envs.panels import sample
from agentcredit.envs.scienceworld_catalogue import Catalogue, Variations, _read, _write

SMALL = Catalogue(
    "1.2.3", "jar", ["wait"],
    {
        "melt": Variations(["melt ice", "melt lead", "melt tin", "melt tin"], {"train": [1, 0], "dev": [2], "test": [3]}),
        "boil": Variations(["boil water"], {"train": [0], "dev": [], "test": []}),
    },
)  # fmt: skip

# Counted by hand from the package's own `get_variations_*` (train, dev, test).
SIZES = {
    "boil": (14, 7, 9),
    "identify-life-stages-2": (4, 2, 4),
    "inclined-plane-friction-named-surfaces": (692, 346, 348),
    "lifespan-longest-lived": (62, 31, 32),
    "mendelian-genetics-unknown-plant": (240, 120, 120),
    "test-conductivity": (450, 225, 225),
    "use-thermometer": (270, 135, 135),
}


def test_a_split_is_sorted_and_padded() -> None:
    assert [(task.id, task.goal) for task in SMALL.split("train")] == [
        ("boil/0000", "boil water"),
        ("melt/0000", "melt ice"),
        ("melt/0001", "melt lead"),
    ]


def test_equal_goals_of_two_variations_have_unequal_hashes() -> None:
    assert SMALL.split("dev")[0].goal == SMALL.split("test")[0].goal
    assert SMALL.split("dev")[0].content_hash != SMALL.split("test")[0].content_hash


def test_another_jar_or_version_gives_another_hash() -> None:
    hashes = {
        Catalogue(version, jar, [], SMALL.tasks).split("train")[0].content_hash
        for version, jar in [("1.2.3", "jar"), ("1.2.3", "raj"), ("1.3.0", "jar")]
    }
    assert len(hashes) == 3


def test_find() -> None:
    assert SMALL.find("melt/0003") == ("melt", 3)


@pytest.mark.parametrize(
    "wrong", ["melt/0004", "melt/3", "melt", "freeze/0000", "melt/-001", "melt/00 1", "melt/٠٠٠١", ""]
)
def test_unknown_tasks(wrong: str) -> None:
    with pytest.raises(KeyError):
        SMALL.find(wrong)


def test_an_unknown_split() -> None:
    with pytest.raises(KeyError):
        SMALL.split("valid")


def test_it_is_kept_whole_and_a_damaged_one_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.json"
    assert _read(path) is None
    _write(path, SMALL)
    assert _read(path) == SMALL
    assert [file.name for file in tmp_path.iterdir()] == ["catalogue.json"]
    path.write_text(path.read_text()[:-20])
    assert _read(path) is None


@pytest.mark.scienceworld
def test_the_whole_benchmark(client: PoolClient) -> None:
    assert client.spec().splits == {"train": 3592, "dev": 1796, "test": 1819}
    assert len(client.spec().task_types) == 30
    for type_, sizes in SIZES.items():
        assert tuple(sum(t.type == type_ for t in client.tasks(s)) for s in ("train", "dev", "test")) == sizes, type_
    ids = [task.id for split in ("train", "dev", "test") for task in client.tasks(split)]
    assert len(set(ids)) == 7207


@pytest.mark.scienceworld
def test_goals_are_those_of_the_loaded_variations(client: PoolClient) -> None:
    """The catalogue makes goals without loading; the simulator's own command states that of what is loaded."""
    tasks = sample(client.tasks("test"), 12) + [t for t in client.tasks("dev") if "inclined" in t.type][::60]
    for task in tasks:
        episode = client.open(task.id)
        episode.reset().result()
        assert episode.step("task").result().observation == f"Task description:\n{task.goal}", task.id
        episode.close()
