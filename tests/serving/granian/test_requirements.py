from __future__ import annotations

from pathlib import Path

import pytest

from offpath.errors import WrongOption
from offpath.serving.granian.requirements import check_requirements, is_met


@pytest.mark.parametrize(
    "requirement",
    [
        "torch",
        "Torch>=2.0,!=2.1",
        "httpx[http2]>=0.1",
        "no-such-package; python_version < '3'",
        "--extra-index-url https://example.org/simple",
        "-f wheels",
        "torch @ https://example.org/torch.whl",
    ],
)
def test_what_is_installed_is_met(requirement: str) -> None:
    assert is_met(requirement)


@pytest.mark.parametrize(
    "requirement",
    ["no-such-package", "torch>=99", "torch==1.13", "-r more.txt", "-e .", "./wheels/a.whl", "a b"],
)
def test_what_is_missing_too_old_or_only_known_to_pip_is_unmet(requirement: str) -> None:
    assert not is_met(requirement)


def test_all_that_is_unmet_is_named_in_one_line_for_pip(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    lines = (
        "# tools",
        "",
        "torch  # any",
        "torch \\",
        "  >=99",
        "httpx --hash=sha256:0",
        "no[x]; y",
    )
    file.write_text("\n".join(lines))
    with pytest.raises(WrongOption) as refused:
        check_requirements("m.mar", file)
    assert str(refused.value).endswith("pip install 'torch >=99' 'no[x]; y'")
    file.write_text("torch\n")
    check_requirements("m.mar", file)
