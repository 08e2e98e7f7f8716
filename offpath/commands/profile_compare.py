"""`offpath profile compare` and `offpath profile show`: saved profiles, read again."""

from __future__ import annotations

import json
from pathlib import Path

import click

FilePath = click.Path(path_type=Path, dir_okay=False)


@click.command("compare")
@click.argument("first", metavar="A", type=FilePath)
@click.argument("second", metavar="B", type=FilePath)
@click.option("--force", is_flag=True, help="Compare what is not comparable.")
@click.option("--json", "json_path", type=FilePath, help="The rows as JSON.")
@click.option("--html", "html_path", type=FilePath, help="One self-contained page.")
def compare(
    first: Path,
    second: Path,
    force: bool,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Two saved profiles side by side, per stage and bucket, with ratios.

    Handlers of the same name are compared; where each file has one only, those two. Other
    photographs, batch sizes, models or hosts are refused.
    """
    from rich.console import Console

    from offpath.profiling.in_process.compare_report import (
        print_comparison,
        to_data,
        write_comparison_page,
    )
    from offpath.profiling.in_process.profile_compare import (
        compare_profiles,
        find_notes,
        find_unlike,
        pair_handlers,
    )
    from offpath.profiling.in_process.profile_result import PROFILE

    results = PROFILE.load(first), PROFILE.load(second)
    comparisons = compare_profiles(*results, force=force)
    notes = [*find_unlike(*results, pair_handlers(*results)), *find_notes(*results)]
    console = Console()
    print_comparison(comparisons, notes, console)
    if json_path is not None:
        json_path.write_text(json.dumps(to_data(comparisons, notes), indent=1) + "\n")
        console.print(f"rows: {json_path}", highlight=False, soft_wrap=True)
    if html_path is not None:
        write_comparison_page(comparisons, results, notes, html_path)
        console.print(f"page: {html_path}", highlight=False, soft_wrap=True)


@click.command("show")
@click.argument("json_path", metavar="FILE", type=FilePath)
@click.option("--html", "html_path", type=FilePath, help="One self-contained page.")
@click.option(
    "--svg", "svg_path", type=FilePath, help="The stages as a picture for a README."
)
def show(json_path: Path, html_path: Path | None, svg_path: Path | None) -> None:
    """Prints (and draws) a saved profile."""
    from rich.console import Console

    from offpath.profiling.in_process.profile_page import write_page
    from offpath.profiling.in_process.profile_report import print_profile
    from offpath.profiling.in_process.profile_result import PROFILE
    from offpath.profiling.in_process.profile_svg import save_svg

    result = PROFILE.load(json_path)
    console = Console()
    print_profile(result, console)
    if html_path is not None:
        write_page(result, html_path)
        console.print(f"page: {html_path}", highlight=False, soft_wrap=True)
    if svg_path is not None:
        save_svg(result, svg_path)
        console.print(f"picture: {svg_path}", highlight=False, soft_wrap=True)
