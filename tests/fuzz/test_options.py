"""Random options of every command: no traceback, and never "this is a bug".

A command that would start a process stops there (tests/support/no_processes.py): its options were
accepted.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from offpath import cli
from scripts.command_list import list_commands
from tests.offpath.wrong_input import INPUTS, write_files
from tests.support.no_processes import Started, forbid_processes

# Commands with values of their own kinds; with many examples, all commands.
USUAL = {"serve", "front", "batch", "check", "predict", "logs read", "logs report", "cost"}
IS_LONG_RUN = "OFFPATH_FUZZ_EXAMPLES" in os.environ
COMMANDS = {
    path: command
    for path, command, _ in list_commands(cli.main, "offpath")
    if IS_LONG_RUN or path.removeprefix("offpath ") in USUAL
}
# Most of the last ones do not exist.
FILES = "photo.jpg good.mar stock.mar text.mar truncated.mar result.json text.json net.py".split()
FILES += "broken.py both.pt ids.txt empty.txt list.yaml bad.properties folder empty damaged".split()
FILES += ["none", "none/none", "/dev/null/x", "", ".", "..", "\x7f", "a" * 300]
NUMBERS = [*"0 1 -1 2 8 65535 65536 1e9 nan inf -inf x".split(), "9" * 30]
WORDS = "a=1 a= =  a near-free offpath nowhere auto 1,2 1,0 , é top_k=1 image_size=nan".split()
WORDS += "prediction_log=[] p99_ms>1 delay=1 a=b:c=d;e".split()
HOSTILE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
# These wait, or measure the machine.
LEFT_OUT = {"--workload", "--images", "--url", "--metrics-url"}
LEFT_OUT |= {"--retries", "--watch", "--help", "--all"}


def draw_value(draw: st.DrawFn, option: click.Option) -> str:
    kind = option.type
    kinds = [
        st.sampled_from(WORDS),
        HOSTILE,
        st.sampled_from(FILES),
        st.sampled_from(NUMBERS),
    ]
    if isinstance(kind, click.Choice):
        kinds = [st.sampled_from([str(one) for one in kind.choices]), HOSTILE]
    elif isinstance(kind, click.types.IntParamType):
        kinds = [st.sampled_from(NUMBERS), st.integers(1, 64).map(str)]
    elif isinstance(kind, click.types.FloatParamType):
        kinds = [st.sampled_from(NUMBERS), st.floats(0, 100).map(str)]
    elif isinstance(kind, click.Path):
        kinds = [st.sampled_from(FILES)] * 3 + [HOSTILE]
    return draw(st.one_of(kinds))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draws a command, with or without the arguments it needs, and some options with any values."""
    path = draw(st.sampled_from(sorted(COMMANDS)))
    command, name = COMMANDS[path], path.removeprefix("offpath ")
    words = name.split()
    if draw(st.integers(0, 4)):
        words += INPUTS.get(name, {}).get("needs", "").replace("{folder}", ".").split()
    options = [
        it
        for it in command.params
        if isinstance(it, click.Option) and not LEFT_OUT & {*it.opts, *it.secondary_opts}
    ]
    for option in (draw(st.lists(st.sampled_from(options), max_size=4)) if options else ()):
        words.append(draw(st.sampled_from([*option.opts, *option.secondary_opts])))
        if not option.is_flag and not option.count:
            words.append(draw_value(draw, option))
    if not draw(st.integers(0, 5)):
        words.append(draw(st.sampled_from(FILES) | HOSTILE))
    if name == "serve":
        # Without this the command would look for Java.
        words += ["--config", "bad.properties"]
    elif {"--workload", "--images"} & {name for it in command.params for name in it.opts}:
        option = "--images" if words[0] == "profile" else "--workload"
        words += [option, draw(st.sampled_from(["nowhere", "empty", "damaged"]))]
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options")
    write_files(path)
    return path


@settings(
    max_examples=settings().max_examples if IS_LONG_RUN else 50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(command_lines())
def test_any_options_are_taken_or_refused_in_a_few_lines(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("OFFPATH_SPOOL_DIR", str(folder / "spool"))
    forbid_processes(monkeypatch)
    try:
        with pytest.raises((SystemExit, Started)) as ended:
            cli.run(words)
    finally:
        monkeypatch.undo()
    said = capsys.readouterr()
    if isinstance(ended.value, Started):
        event("taken")
        return
    event(f"code {ended.value.code}")
    assert ended.value.code in (0, 1, 2, None), said.err
    assert "Traceback" not in said.err and "a bug" not in said.err
    if ended.value.code == 2 and "Usage:" not in said.err:
        assert 1 <= len(said.err.splitlines()) <= 3, said.err
