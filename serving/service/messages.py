"""Paths and refusals: the requests that a model has no part in."""

from __future__ import annotations

import json
import math
import random
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from offpath.handler.contract import Reply
from offpath.handler.error_kinds import NO_METHOD, NO_PATH, RETRY_AFTER_S, TOO_LARGE, ErrorKind

JSON_TYPE = "application/json"
METHODS = frozenset(("POST", "PUT"))
# TorchServe's words to a handler, which must come from the path and not from a client.
WORDS = ("describe", "explain")
PING = "/ping"
# The protocols of KServe (kserve.py).
V1, V2 = "v1", "v2"
V2_SERVER = {"name": "offpath", "version": "", "extensions": ["binary_tensor_data"]}
ID_FORM = re.compile("[A-Za-z0-9-]{1,64}")
# A path's model, and its version if there is one.
ASKED = re.compile(
    r"\A/(?:predictions|explanations|v[12]/models)/([^/:]{1,128})"
    r"(?:(?:/versions)?(/[0-9][^/]{0,63}))?(?:[:/][a-z]+)?\Z"
)
# The versions of each model.
Served = Mapping[str, Sequence[str]]


HEALTHY = Reply(200, {"content-type": JSON_TYPE}, b'{"status": "Healthy"}\n')


def make_event_id(given: str) -> str:
    """Makes a unique event id that begins with the client's id, if that has a plain form.

    Clients repeat ids, and the prediction log keeps one record per id.
    """
    unique = uuid.uuid4()
    return f"{given}.{unique.hex[:12]}" if ID_FORM.fullmatch(given) else str(unique)


class Refused(Exception):
    """A request that gets an error of this kind, in the form of the handler's own errors.

    Args:
        wait_s: predicted seconds after which another request would have been answered.
    """

    def __init__(self, kind: ErrorKind, wait_s: float = 0.0) -> None:
        super().__init__(kind.text)
        self.kind, self._wait_s = kind, wait_s

    @property
    def reply(self) -> Reply:
        kind = self.kind
        headers = {"content-type": JSON_TYPE}
        if kind.is_passing:
            # By chance up to twice as long, so that not all refused clients come back at once.
            wait_s = self._wait_s * random.uniform(1, 2)
            headers["Retry-After"] = str(max(RETRY_AFTER_S, math.ceil(wait_s)))
        fields = {"code": kind.status, "type": kind.type, "message": kind.text}
        return Reply(kind.status, headers, json.dumps(fields).encode())


@dataclass(frozen=True)
class PathKind:
    """A path's kind: prediction or explanation, and KServe's protocol; empty for TorchServe's."""

    explains: bool = False
    protocol: str = ""


def list_served(versions: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the versions of each model, each once."""
    served: dict[str, list[str]] = {}
    for name, version in dict.fromkeys(versions):
        served.setdefault(name, []).append(version)
    return served


def describe_missing(asked: str, served: Served) -> ErrorKind:
    """Returns the error for a model or version that is not served."""
    names = (f"{name} ({', '.join(found)})" if found else name for name, found in served.items())
    return NO_PATH._replace(text=f"no model '{asked}'; served: {', '.join(names)}")


class ModelPaths:
    """The paths that lead to one version of a model; `version` is None if paths name none."""

    def __init__(self, name: str, version: str | None, max_body_bytes: int, served: Served) -> None:
        self._served, self._names = served, (name, f"{name}/{version}")
        self._calls = {
            # As TorchServe answers it for its only model. A front door opens it only when told to.
            "/invocations": PathKind(),
            f"/v1/models/{name}:predict": PathKind(protocol=V1),
            f"/v1/models/{name}:explain": PathKind(True, V1),
        }
        for model in [name] if version is None else [name, f"{name}/{version}"]:
            of_v2 = f"/v2/models/{model.replace('/', '/versions/')}"
            self._calls |= {
                f"/predictions/{model}": PathKind(),
                f"/explanations/{model}": PathKind(True),
                f"{of_v2}/infer": PathKind(protocol=V2),
                f"{of_v2}/explain": PathKind(True, V2),
            }
        self.max_body_bytes = max_body_bytes
        self.too_large = TOO_LARGE._replace(
            text=TOO_LARGE.text.format(max_body_bytes=max_body_bytes)
        )

    def find(self, method: str, path: str, length: str | None) -> PathKind:
        """Returns what a request asks for.

        `path` has no escapes. `length` is the content-length header.

        Raises:
            Refused: the request is for none of these paths, or its body is too large.
        """
        call = self._calls.get(path)
        if call is None:
            asked = ASKED.sub(r"\1\2", path)
            is_known = asked in (path, *self._names)
            raise Refused(NO_PATH if is_known else describe_missing(asked, self._served))
        if method not in METHODS:
            raise Refused(NO_METHOD)
        if length is not None and int(length) > self.max_body_bytes:
            raise Refused(self.too_large)
        return call
