"""Draws parts with and without defects, trains the model on them, and keeps a few as photographs.

usage: python train.py FOLDER
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import torch
from net import Net
from PIL import Image, ImageDraw

DEFECTS = ("scratch", "stain", "hole")
SIDE = 128
MEAN, STD = 0.5, 0.25
# The photographs that the example sends: their defects.
PARTS = {
    "good": (),
    "scratched": ("scratch",),
    "stained": ("stain",),
    "ruined": ("scratch", "hole"),
}


def draw_part(dice: random.Random, defects: tuple[str, ...]) -> Image.Image:
    """Draws a grey metal part with the defects at random places."""
    noise = np.random.default_rng(dice.randrange(2**32)).normal(0, 6, (SIDE, SIDE, 1))
    grey = np.full((SIDE, SIDE, 3), dice.uniform(120, 170)) + noise
    image = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for defect in defects:
        x, y = (dice.uniform(0.25, 0.75) * SIDE for _ in range(2))
        if defect == "scratch":
            dx, dy = (dice.uniform(20, 40) * dice.choice((-1, 1)) for _ in range(2))
            draw.line((x - dx, y - dy, x + dx, y + dy), fill=(235, 235, 240), width=3)
        elif defect == "stain":
            size = dice.uniform(8, 16)
            draw.ellipse((x - size, y - size, x + size, y + size), fill=(120, 80, 40))
        else:
            size = dice.uniform(5, 9)
            draw.ellipse((x - size, y - size, x + size, y + size), fill=(10, 10, 10))
    return image


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Returns [3, SIDE, SIDE], normalised as the archive is told to."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return (pixels / 255 - MEAN) / STD


def main(folder: Path) -> None:
    """Writes the weights, the labels and the photographs."""
    torch.manual_seed(0)
    dice = random.Random(0)
    # Each kind of defect is on a third of the parts.
    chosen = [tuple(d for d in DEFECTS if dice.random() < 0.33) for _ in range(600)]
    images = torch.stack([to_tensor(draw_part(dice, defects)) for defects in chosen])
    wanted = torch.tensor([[float(d in some) for d in DEFECTS] for some in chosen])
    net = Net()
    steps = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(200):
        some = torch.randint(len(chosen), (32,))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(images[some]), wanted[some])
        steps.zero_grad()
        loss.backward()
        steps.step()
    with torch.inference_mode():
        right = ((net(images) > 0) == (wanted > 0)).float().mean()
    print(f"trained: {100 * right:.1f} % of the training labels are right")
    torch.save(net.state_dict(), folder / "net.pt")
    (folder / "classes.txt").write_text("\n".join(DEFECTS) + "\n")
    for name, defects in PARTS.items():
        draw_part(dice, defects).save(folder / f"{name}.jpg", quality=92)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__).strip())
    main(Path(sys.argv[1]))
