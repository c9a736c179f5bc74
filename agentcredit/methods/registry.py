"""Methods by name: the built-in ones, those of other packages, and how a configuration becomes a composition.

Other packages add methods through the entry-point group ``agentcredit.methods`` (name = ``module:Class``); a built-in
name cannot be replaced.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from itertools import combinations
from typing import Any, get_args

from pydantic import ValidationError

from agentcredit.config import MethodConfig
from agentcredit.errors import MissingError, UsageError, nearest
from agentcredit.methods.base import Kind, Method
from agentcredit.methods.compose import Composition
from agentcredit.policies.chat import Chat

ENTRY_POINT_GROUP = "agentcredit.methods"
DEFAULT_BASE = "grpo"
START = "start"
"""Name of the analyser that is the run's own start model."""

_BUILT_IN = {
    "ahead": "agentcredit.methods.ahead:Ahead",
    "alignopsd": "agentcredit.methods.alignopsd:Alignopsd",
    "cope": "agentcredit.methods.cope:Cope",
    "dapo": "agentcredit.methods.dapo:Dapo",
    "drgrpo": "agentcredit.methods.drgrpo:Drgrpo",
    "echo": "agentcredit.methods.echo:Echo",
    "gigpo": "agentcredit.methods.gigpo:Gigpo",
    "graphgpo": "agentcredit.methods.graphgpo:Graphgpo",
    "grpo": "agentcredit.methods.grpo:Grpo",
    "hgpo": "agentcredit.methods.hgpo:Hgpo",
    "proas": "agentcredit.methods.proas:Proas",
    "rlsd": "agentcredit.methods.rlsd:Rlsd",
    "rloo": "agentcredit.methods.rloo:Rloo",
    "rwml": "agentcredit.methods.rwml:Rwml",
    "sdar": "agentcredit.methods.sdar:Sdar",
    "stepopsd": "agentcredit.methods.stepopsd:Stepopsd",
}


def names() -> list[str]:
    """Names of all methods, sorted."""
    return sorted({*_BUILT_IN, *_plugins()})


def get(name: str) -> type[Method]:
    """The class of a method.

    Raises:
        UsageError: no method has this name.
        MissingError: a plug-in's module cannot be imported, or what it holds is not a method.
    """
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    plugins = _plugins()
    if name not in plugins:
        raise UsageError(f"Unknown method '{name}'.{nearest(name, names())}")
    return _load(plugins[name])


def defaults_of(name: str, base: str) -> dict[str, tuple[Any, str]]:
    """Configuration defaults of the methods named: key to (value, what it is a default of). Later methods are stronger.

    Names that are wrong are left to :func:`build`, which says so.
    """
    values: dict[str, tuple[Any, str]] = {}
    for part in [base or DEFAULT_BASE, *name.split("+")]:
        try:
            cls = get(part.strip())
        except (UsageError, MissingError):
            continue
        values |= {key: (value, f"default of {cls.name}") for key, value in getattr(cls, "defaults", {}).items()}
    return values


def build(config: MethodConfig) -> Composition:
    """The composition that a configuration names: ``grpo``, ``proas`` (on ``base``), ``cope+proas``.

    A parameter goes to every method of the composition that has it. Methods of one kind act in the order given.

    Raises:
        UsageError: an unknown method or parameter, a bad value, two estimators, a method named twice, two that make no sense
            together, or an analyser that is asked for and not there.
    """
    classes = _classes(config)
    for one, other in combinations(classes, 2):
        if reason := clash(one, other):
            raise UsageError(f"Methods '{one.name}' and '{other.name}' do not go together: {reason}")
    values = _route(config.params, classes)
    made: list[Any] = [_make(cls, values[cls.name]) for cls in classes]
    _check_analyser(config, made)
    by_kind = {kind: [m for m in made if m.kind == kind] for kind in get_args(Kind)}
    return Composition(
        estimator=by_kind["estimator"][0],
        shapers=tuple(by_kind["shaper"]),
        refiners=tuple(by_kind["refiner"]),
        auxiliaries=tuple(by_kind["auxiliary"]),
        invalid_penalty=config.invalid_penalty,
        invalid_mode=config.invalid_mode,
    )


def clash(one: type[Method], other: type[Method]) -> str:
    """Why two methods make no sense together, and what to do instead; empty where they do.

    Either class may say so in ``clashes``, a mapping of method names to such a sentence.
    """
    declared: list[Mapping[str, str]] = [getattr(cls, "clashes", {}) for cls in (one, other)]
    return declared[0].get(other.name, "") or declared[1].get(one.name, "")


def _classes(config: MethodConfig) -> list[type[Method]]:
    """The methods of a configuration, the estimator first."""
    parts = [part.strip() for part in config.name.split("+")]
    if "" in parts:
        raise UsageError(f"Method '{config.name}' has an empty part: write names joined by +, e.g. cope+proas.")
    for part in parts:
        if parts.count(part) > 1:
            raise UsageError(f"Method '{config.name}' names '{part}' twice.")
    classes = [get(part) for part in parts]
    estimators = [cls for cls in classes if cls.kind == "estimator"]
    if len(estimators) > 1:
        both = " and ".join(cls.name for cls in estimators)
        raise UsageError(f"Method '{config.name}' has several group estimators ({both}): keep one of them.")
    if not estimators:
        base = get(config.base or DEFAULT_BASE)
        if base.kind != "estimator":
            known = ", ".join(name for name in names() if get(name).kind == "estimator")
            raise UsageError(f"Base '{config.base}' is not a group estimator. Known: {known}.")
        estimators = [base]
    elif config.base and config.base != estimators[0].name:
        raise UsageError(
            f"Method '{config.name}' already has the group estimator '{estimators[0].name}': "
            f"leave out the base '{config.base}'."
        )
    return estimators + [cls for cls in classes if cls.kind != "estimator"]


def _route(params: Mapping[str, Any], classes: Sequence[type[Method]]) -> dict[str, dict[str, Any]]:
    """Each method's own parameters, by field name."""
    accepted = {cls.name: cls.Params.keys() for cls in classes}
    values: dict[str, dict[str, Any]] = {cls.name: {} for cls in classes}
    for key, value in params.items():
        owners = [name for name, keys in accepted.items() if key in keys]
        if not owners:
            known = {known for keys in accepted.values() for known in keys}
            raise UsageError(f"Unknown parameter '{key}' of method {'+'.join(accepted)}.{nearest(key, known)}")
        for name in owners:
            field = accepted[name][key]
            if field in values[name]:
                raise UsageError(f"Parameter '{field}' of method {name} is given twice (also as '{key}').")
            values[name][field] = value
    return values


def _make(cls: type[Method], values: Mapping[str, Any]) -> Method:
    try:
        params = cls.Params.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = f"parameter '{where}' is {first['input']!r}" if where else "parameters"
        reason = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"Method {cls.name}: {what}: {reason} (method.params in the configuration).") from error
    factory: Any = cls
    return factory(params)


def _check_analyser(config: MethodConfig, made: Sequence[Any]) -> None:
    asking = [method.name for method in made if getattr(method, "asks_analyser", False)]
    if asking and not config.analyser:
        raise UsageError(
            f"Method {asking[0]} asks an analyser about failed episodes (detector llm) and method.analyser is empty: set it "
            "to start or to an endpoint's address, or leave llm out of method.params.detectors."
        )
    if config.analyser not in ("", START):
        if "://" not in config.analyser:
            raise UsageError(
                f"method.analyser is '{config.analyser}': write {START}, or the address of an endpoint such as "
                "http://127.0.0.1:8000/v1."
            )
        Chat(config.analyser, config.analyser_model)
        if not config.analyser_model:
            raise UsageError(
                f"method.analyser is the endpoint {config.analyser}: name its model in method.analyser_model."
            )


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in _BUILT_IN}


def _load(point: EntryPoint) -> type[Method]:
    try:
        cls = point.load()
    except (ImportError, AttributeError) as error:
        raise MissingError(
            f"Method '{point.name}' is announced by an installed package as {point.value}, which cannot be loaded: {error}."
        ) from error
    lacking = [attribute for attribute in ("name", "kind", "Params", "paper", "summary") if not hasattr(cls, attribute)]
    if lacking:
        raise MissingError(
            f"Method '{point.name}' ({point.value}) lacks {', '.join(lacking)}: see docs on adding a method."
        )
    return cls
