"""Reference graphs that somebody wrote down: milestones of a task type with checkable conditions (docs/methods/proas.md).

A JSON file by a language model, by the policy under training, or by hand:

    {"format": 1, "env": "alfworld", "graphs": {"pick_and_place_simple": {
        "milestones": [{"name": "searching", "when": []}, {"name": "holding it", "when": ["hold = target"]}],
        "edges": [["searching", "holding it"], ["holding it", "<GOAL>"]]}}}

A state stands at the milestone furthest along (fewest edges from the goal; of equals the one written last) whose
conditions all hold; where none holds it is unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentcredit.episodes import Episode, Group, Task
from agentcredit.errors import AgentCreditError, MissingError, UsageError, nearest
from agentcredit.methods.base import Tools
from agentcredit.methods.graph_sources import GraphKey, Level, episode_states
from agentcredit.methods.predicates import Predicate, Vocabulary, vocabulary
from agentcredit.methods.reference_graph import GOAL, ReferenceGraph

DISTILLED_FORMAT = 1
Name = Annotated[str, Field(min_length=1, max_length=80)]


class Milestone(BaseModel):
    """A place on the way; ``when`` are predicates over the lifted key, all of which hold there."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name
    when: tuple[str, ...]


class WrittenGraph(BaseModel):
    """The graph of one task type; an edge names two milestones, or ends in the goal."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    milestones: Annotated[tuple[Milestone, ...], Field(min_length=1, max_length=100)]
    edges: Annotated[tuple[tuple[Name, Name], ...], Field(min_length=1, max_length=1000)]


class Document(BaseModel):
    """A file of graphs by task type; ``source`` says who wrote it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[1]
    env: str
    source: str = ""
    graphs: dict[str, WrittenGraph]


class MilestoneGraph:
    """A written graph that was found whole: conditions that can be checked, and a way from every milestone to the goal.

    Raises:
        UsageError: it is not.
    """

    def __init__(self, written: WrittenGraph, words: Vocabulary) -> None:
        names = [milestone.name for milestone in written.milestones]
        for name in names:
            if name == GOAL or names.count(name) > 1:
                raise UsageError(f"the milestone '{name}' is named twice, or like the goal.")
        for edge in written.edges:
            for name, known in zip(edge, (names, [*names, GOAL]), strict=True):
                if name not in known:
                    raise UsageError(f"the edge {list(edge)} names no milestone '{name}'.{nearest(name, known)}")
        self.graph = ReferenceGraph.of([(u, v, {"": 1.0}) for u, v in written.edges])
        distance = self.graph.goal_distances()
        lost = [name for name in names if name not in distance]
        if lost:
            raise UsageError(f"no edges lead from the milestone '{lost[0]}' to {GOAL}.")
        self._words = words
        found = [
            (name, tuple(Predicate.parse(text, words) for text in milestone.when))
            for name, milestone in zip(names, written.milestones, strict=True)
        ]
        order = sorted(range(len(names)), key=lambda i: (distance[names[i]], -i))
        self._furthest_first = [found[i] for i in order]

    def milestone(self, lifted_key: str | None) -> str | None:
        """The furthest milestone whose conditions hold in a state, None where none does or the state is unknown."""
        fields = self._words.parse(lifted_key) if lifted_key is not None else None
        if fields is None:
            return None
        return next((name for name, when in self._furthest_first if all(p.holds(fields) for p in when)), None)


class DistilledSource:
    """Written graphs, of the lifted level alone. They do not change."""

    def __init__(self, document: Document, where: str = "the file") -> None:
        """Raises UsageError when the document is not valid; ``where`` names it."""
        self.document, self._where = document, where
        self.milestone_graphs = checked(document, where)

    @classmethod
    def read(cls, path: Path) -> DistilledSource:
        """The graphs of a file.

        Raises:
            MissingError: it is not there.
            UsageError: it is not a valid document.
        """
        return cls(read_document(path), str(path))

    @property
    def digest(self) -> str:
        """The first 8 hex digits of the SHA-256 of what it says."""
        text = json.dumps(self.document.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def before(self, groups: Sequence[Group], tools: Tools) -> None:
        """Nothing is learned.

        Raises:
            UsageError: the graphs are of another environment.
        """
        for group in groups[:1]:
            if group.task.env != self.document.env:
                raise UsageError(
                    f"proas: {self._where} has graphs of '{self.document.env}', and this is '{group.task.env}'; "
                    "set method.params.distilled to another file."
                )

    def after(self, groups: Sequence[Group], tools: Tools) -> None:
        """Nothing is learned."""

    def graph(self, task: Task, level: Level) -> ReferenceGraph | None:
        """The graph of the task's type; None at the level of instances, and for types that are not in the file."""
        found = self.milestone_graphs.get(task.type) if level == "lifted" else None
        return found.graph if found else None

    def nodes(self, episode: Episode, level: Level) -> list[str | None]:
        """The milestones that the episode's states stand at; the last one of a success is the goal."""
        states = episode_states(episode, level)
        found = self.milestone_graphs.get(episode.task.type) if level == "lifted" else None
        return [state if state == GOAL else found.milestone(state) for state in states] if found else states

    def graphs(self) -> dict[GraphKey, ReferenceGraph]:
        """Every graph of the file."""
        return {("lifted", self.document.env, kind): found.graph for kind, found in self.milestone_graphs.items()}

    def state_dict(self) -> dict[str, Any]:
        """The document."""
        return {"distilled": self.document.model_dump(mode="json")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Checks that a resumed run has the graphs that it was started with.

        Raises:
            UsageError: the file says something else now.
        """
        if state["distilled"] != self.document.model_dump(mode="json"):
            raise UsageError(
                f"{self._where} has changed since the checkpoint was written: restore it, or start a new run with --fresh."
            )


def read_document(path: Path) -> Document:
    """A file's document, of the right form but with its graphs not yet checked.

    Raises:
        MissingError: the file cannot be read.
        UsageError: it is not of the form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise MissingError(f"The reference graphs {path} cannot be read: {reason}.") from error
    return parse(Document, text, str(path))


def parse(kind: type[Any], text: str, where: str) -> Any:
    """JSON text as a model of this module.

    Raises:
        UsageError: it is not JSON, or not of the form; the sentence says what is wrong first.
    """
    try:
        return kind.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the top"
        raise UsageError(f"{where} is not a file of reference graphs: at {place}, {_plain(first['msg'])}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not a file of reference graphs: it is not JSON ({error}).") from error


def checked(document: Document, where: str) -> dict[str, MilestoneGraph]:
    """The document's graphs by task type.

    Raises:
        UsageError: a graph is not whole, or the environment's predicates are not known.
    """
    try:
        words = vocabulary(document.env)
    except AgentCreditError as error:
        raise UsageError(f"{where}: {error}") from error
    graphs = {}
    for kind, written in document.graphs.items():
        try:
            graphs[kind] = MilestoneGraph(written, words)
        except AgentCreditError as error:
            raise UsageError(f"{where}, graph '{kind}': {error}") from error
    return graphs


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip(".")
