"""`TF_CONFIG`: the variable in which TensorFlow's tools describe a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from replicax.cluster._cluster_spec import ClusterSpec
from replicax.errors import InvalidArgumentError, describe

from ._base import ClusterResolver
from ._environment import Environment, require
from ._simple import check_task

NAME = "TF_CONFIG"
_EXAMPLE = (
    '{"cluster": {"worker": ["node0:8476", "node1:8476"]}, "task": {"type": "worker", "index": 0}}'
)


class TFConfigResolver(ClusterResolver):
    """The cluster that `TF_CONFIG` describes. Context: any.

    Args:
        task_type: The job of this process, instead of the one in `TF_CONFIG`.
        task_id: The index of this process, instead of the one in `TF_CONFIG`.
        environment: The variables; None takes those of this process.

    Raises:
        FailedPreconditionError: A method is called, and there is no `TF_CONFIG`.
        InvalidArgumentError: `TF_CONFIG` is no JSON of the known form, names a task twice, or
            this process is none of its tasks.

    Examples:
        >>> text = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
        >>> TFConfigResolver(environment={"TF_CONFIG": text}).rank
        1
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        *,
        environment: Environment | None = None,
    ) -> None:
        super().__init__(environment)
        self._task_type, self._task_id = task_type, task_id

    @classmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns whether `TF_CONFIG` describes a cluster."""
        found = os.environ if environment is None else environment
        return bool(found.get(NAME, "").strip()) and bool(parse_tf_config(found[NAME])["cluster"])

    def _parsed(self) -> dict[str, Any]:
        require(self._environment, type(self).__name__, [NAME], fix=f"set {NAME}={_EXAMPLE}.")
        return parse_tf_config(self._environment[NAME])

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks of `cluster`."""
        spec = ClusterSpec(self._parsed()["cluster"])
        check_task(spec, self.task_type, self.task_id)
        return spec

    @property
    def task_type(self) -> str | None:
        """The `type` of `task`."""
        if self._task_type is not None:
            return self._task_type
        found = self._parsed()["task"].get("type")
        return None if found is None else str(found)

    @property
    def task_id(self) -> int | None:
        """The `index` of `task`."""
        if self._task_id is not None:
            return self._task_id
        found = self._parsed()["task"].get("index")
        if found is None:
            return None
        text = str(found)
        if isinstance(found, bool) or not (text.isascii() and text.isdecimal()):
            raise _wrong(f"has the index {found!r}", "the index is a whole number from 0.")
        return int(text)


def parse_tf_config(text: str) -> dict[str, Any]:
    """The JSON of `TF_CONFIG`, with both of its parts."""
    try:
        parsed = json.loads(text, object_pairs_hook=_without_duplicates)
    except ValueError as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise _wrong(f"is no JSON: {text!r}", str(error)) from error
    if not isinstance(parsed, Mapping):
        raise _wrong(f"is {text!r}", "it must be a JSON object.")
    parts = {"cluster": {}, "task": {}, **parsed}
    for name in ("cluster", "task"):
        if not isinstance(parts[name], Mapping):
            raise _wrong(f"has {name!r}: {parts[name]!r}", f"{name!r} must be a JSON object.")
    return parts


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise _wrong(f"names {twice[0]!r} twice", "one of the two would be lost in silence.")
    return dict(pairs)


def _wrong(what: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(describe(f"{NAME} {what}.", why=why, fix=f"write {_EXAMPLE}."))
