"""The translation of a game from PDDL to SAS, done once per game on a machine instead of four times per load.

It is the cost of loading a game (0.4 s for a small room, 1.5 s and more for a whole one), it is a pure function of two
texts, and the siblings of a group, the runs of a comparison and all workers load the same games. So it is kept on disk,
written atomically, and shared by all processes that use the same folder.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections import OrderedDict
from importlib import metadata
from pathlib import Path
from typing import Any

from agentcredit.files import atomic_write_bytes

_IN_MEMORY = 16


class TranslationMemo:
    """``fast_downward.pddl2sas`` with a memory.

    The engine also asks for a second, optimised translation, which only its planner uses. No one here asks the planner,
    so that half is answered with nothing and :meth:`quiet` makes the library ignore it.
    """

    def __init__(self, folder: Path) -> None:
        import fast_downward

        self._folder = folder
        self._translate = fast_downward.pddl2sas
        self._version = metadata.version("fast-downward-textworld")
        self._recent: OrderedDict[str, tuple[Any, str]] = OrderedDict()
        self.translated = 0

    def __call__(self, domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
        """The planning task and its SAS text."""
        if optimize:
            return None, ""
        key = hashlib.sha256("\0".join((self._version, domain, problem)).encode()).hexdigest()
        if key in self._recent:
            self._recent.move_to_end(key)
        else:
            self._recent[key] = self._read(key) or self._compute(key, domain, problem)
            if len(self._recent) > _IN_MEMORY:
                self._recent.popitem(last=False)
        return self._recent[key]

    @staticmethod
    def quiet(library: Any) -> None:
        """Makes an engine's library ignore the translation meant for the planner."""
        library.load_sas_replan = lambda sas: None

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key[2:]}.sas"

    def _read(self, key: str) -> tuple[Any, str] | None:
        try:
            return pickle.loads(zlib.decompress(self._path(key).read_bytes()))
        except FileNotFoundError:
            return None
        except (zlib.error, EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            return None  # cut short or of another version of a class: translated and written again

    def _compute(self, key: str, domain: str, problem: str) -> tuple[Any, str]:
        result = self._translate(domain, problem)
        self.translated += 1
        atomic_write_bytes(self._path(key), zlib.compress(pickle.dumps(result), 6))
        return result
