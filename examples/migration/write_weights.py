"""Writes weights and labels: `write_weights.py FOLDER`. They stand for your trained model."""

import json
import sys
from pathlib import Path

import torch
from net import ImageClassifier

folder = Path(sys.argv[1])
torch.manual_seed(0)
torch.save(ImageClassifier().state_dict(), folder / "net.pt")
labels = {str(number): f"part {number}" for number in range(1000)}
(folder / "index_to_name.json").write_text(json.dumps(labels))
