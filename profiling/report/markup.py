"""The templates of the HTML pages and how one of them becomes markup."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@lru_cache
def environment() -> Environment:
    """The templates; a name that a template misses is an error, not an empty text."""
    return Environment(
        loader=PackageLoader("offpath.profiling.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> Markup:
    """One template's markup."""
    return Markup(environment().get_template(template).render(**values))
