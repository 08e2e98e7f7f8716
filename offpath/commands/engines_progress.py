"""What `offpath bench engines` shows while it runs: the variant and a bar over all rounds."""

from __future__ import annotations

from rich.markup import escape

from offpath.commands.profile_progress import ProfileProgress


class EnginesProgress(ProfileProgress):
    """A live bar on stderr; where stderr is no terminal, one plain line per new step."""

    def on_progress(self, done: int, total: int) -> None:
        """Variants measured so far, of all rounds."""
        self.on_batches(done, total)

    def on_failure(self, reason: str) -> None:
        """A variant is left out from now on; the reason begins with its name."""
        self._console.print(f"[yellow]left out:[/] {escape(reason)}", highlight=False)
