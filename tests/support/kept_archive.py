"""Builds an archive that later versions must still serve: `tests/serving/front/archives/`.

Every release adds one, from its own checkout:

    python -m tests.support.kept_archive 1.0

The model has three classes and no photographs, so that an archive takes about 100 kB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.support.pictures import jpeg

FOLDER = Path(__file__).parents[1] / "serving" / "front" / "archives"
MODEL = '''"""Three classes, by an image's mean colour."""

import torch


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 3)

    def forward(self, pictures):
        return self.head(pictures.mean(dim=(2, 3)))
'''


def build(release: str) -> Path:
    """Builds and packs `built-by-<release>.mar` with the `offpath` of this environment."""
    name = f"built-by-{release}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "tiny.py").write_text(MODEL)
        (folder / "labels.txt").write_text("red\ngreen\nblue\n")
        (folder / "pictures").mkdir()
        (folder / "pictures" / "plain.jpg").write_bytes(jpeg(size=(64, 64)))
        options = ["--model", "tiny.py", "--weights", "random", "--engine", "eager"]
        options += ["--labels", "labels.txt", "--calibrate", "pictures"]
        options += ["--set", "image_size=32", "--workers", "1", "--name", name]
        command = [sys.executable, "-m", "offpath", "archive", *options]
        subprocess.run([*command, "--output", "."], cwd=folder, check=True)
        FOLDER.mkdir(exist_ok=True)
        target = FOLDER / f"{name}.mar"
        with zipfile.ZipFile(folder / f"{name}.mar") as old:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
                for info in old.infolist():
                    new.writestr(info, old.read(info), zipfile.ZIP_DEFLATED, 9)
    return target


if __name__ == "__main__":
    print(build(sys.argv[1]))
