"""ALFWorld's own engine (TextWorld's ``PddlEnv`` on Fast Downward), without its repeated work.

Rules, state, observations and commands are the engine's. What is taken away is work that gives the same result each
time: parsing the grammar for every game, parsing every text template at every step, deriving every command's text at
every step (nine tenths of a step's time), and translating a game four times. The tests hold the answers against the
package's unchanged classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.alfworld_translation import TranslationMemo

NOTHING_HAPPENS = "Nothing happens."


@lru_cache(maxsize=1)
def engine_class(memo_folder: Path) -> Callable[[], Any]:
    """The engine's class, made once per process: its base class is imported here and not at import."""
    import fast_downward
    from alfworld.agents.utils.misc import Demangler
    from textworld.core import EnvInfos, GameState
    from textworld.envs import PddlEnv
    from textworld.envs.pddl import logic as pddl_logic
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    translate = TranslationMemo(memo_folder)
    fast_downward.pddl2sas = translate
    game_logic = lru_cache(maxsize=8)(pddl_logic.GameLogic)
    _memoise_parsers(textgen, Rule)

    class Engine(PddlEnv):
        """One live game: ``load(game)``, ``reset()``, ``step(command)``; returned states are those of ``PddlEnv``."""

        def __init__(self) -> None:
            super().__init__(EnvInfos(won=True, admissible_commands=True))
            translate.quiet(self.downward_lib)

        def load(self, game: Game) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            # The task's sentence is told apart from the observation, so all games share one parsed grammar.
            grammar = game.grammar.replace(game.goal, "UNKNOWN GOAL")
            self._logic = game_logic(domain=game.domain, grammar=grammar)
            self._problem = game.problem
            self._entity_infos = {}
            self._commands: dict[tuple[Any, ...], str] = {}

        def reset(self) -> Any:
            self._pddl_state = pddl_logic.PddlState(self.downward_lib, self._problem, self._logic)
            if not self._entity_infos:
                self._entity_infos = self._get_entity_infos()
                demangler = Demangler(game_infos=self._entity_infos, shuffle=False)
                for info in self._entity_infos.values():
                    info.name = demangler.demangle_alfred_name(info.id)
            self.prev_state = None
            self.state = GameState()
            self._last_action, self._moves = None, 0
            self.state.feedback = self._logic.grammar.derive("#intro#", self._context({}))
            self._gather_infos()
            return self.state

        def facts(self) -> dict[Any, set[Any]]:
            """The true propositions by signature."""
            return self._pddl_state._facts

        def name(self, variable: Any) -> str:
            """The name that texts use for an entity, as in ``countertop 1``."""
            return self._entity_infos[variable.name].name.strip()

        def _gather_infos(self) -> None:
            self.state["won"] = self._pddl_state.check_goal()
            self.state["lost"] = False
            actions = self._pddl_state.all_applicable_actions()
            self.state["_valid_actions"] = actions
            self.state["_valid_commands"] = [self._command(action) for action in actions]
            self.state["admissible_commands"] = sorted(set(self.state["_valid_commands"]))

        def _command(self, action: Any) -> str:
            key = (action.name, *(variable.name for variable in action.mapping.values()))
            if key not in self._commands:
                template = self._logic.grammar.derive(action.command_template, self._context(action.mapping))
                action.command_template = template
                names = {name: info.name for name, info in self._entity_infos.items()}
                self._commands[key] = action.format_command(names)
            return self._commands[key]

        def _context(self, mapping: Any) -> dict[str, Any]:
            return {
                "state": self._pddl_state,
                "facts": [],
                "variables": {slot.name: self._entity_infos[variable.name] for slot, variable in mapping.items()},
                "mapping": mapping,
                "entity_infos": self._entity_infos,
            }

    return Engine


def _memoise_parsers(textgen: Any, rule: Any) -> None:
    """Text templates and conditions are parsed once per process, and contexts are copied no deeper than they change.

    A parsed symbol is given its context later, so each use of a template gets its own copy. Of a context only the two
    dictionaries are ever updated; what they hold (entities, variables) is read.
    """
    parse = lru_cache(maxsize=None)(textgen._parse_and_convert)

    def parse_template(text: str, rule_name: str, trace: bool = False) -> Any:
        return copy.deepcopy(parse(text, rule_name=rule_name))

    def copy_context(context: dict[str, Any]) -> dict[str, Any]:
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    textgen._parse_and_convert = parse_template
    textgen.copy_context = copy_context
    rule.parse_conjunctive_query = lru_cache(maxsize=None)(rule.parse_conjunctive_query)
