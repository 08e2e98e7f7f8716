"""A figure's bound as users write it: `label_psi>0.2`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
FORM = re.compile(r"\s*(?P<metric>[\w.]+)\s*(?P<sign>[<>=!]=?)\s*(?P<bound>\S+)\s*")


@dataclass(frozen=True)
class Threshold:
    """A metric, a comparison and a number; `text` is how the user wrote them."""

    text: str
    metric: str
    sign: str
    bound: float

    def is_met(self, value: float) -> bool:
        return COMPARISONS[self.sign](value, self.bound)


def parse_threshold(text: str, metrics: Collection[str], example: str) -> Threshold:
    """Parses `METRIC SIGN NUMBER`, where METRIC is one of `metrics`.

    Raises:
        ValueError: the text has another form; the message shows `example`.
    """
    found = FORM.fullmatch(text)
    if found is None or found["sign"] not in COMPARISONS:
        raise ValueError(
            f"{text!r}: expected METRIC, one of {' '.join(COMPARISONS)}, and a number, as in"
            f" {example!r}"
        )
    if found["metric"] not in metrics:
        raise ValueError(
            f"{text!r}: no metric {found['metric']!r}; there are: {', '.join(metrics)}"
        )
    try:
        bound = float(found["bound"])
    except ValueError:
        raise ValueError(f"{text!r}: {found['bound']!r} is not a number") from None
    return Threshold(text, found["metric"], found["sign"], bound)
