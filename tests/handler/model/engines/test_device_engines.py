"""Batch norms that the eager engine folds into convolutions on CUDA."""

from __future__ import annotations

import pytest
import torch

from offpath.handler.model.engines.eager import fold_batch_norms


class Normed(torch.nn.Module):
    """Two convolutions with batch norms; the output of the second is also used without its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(3, 3, 3, padding=1) for _ in "ab")
        self.norm, self.other = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        planes = self.second(self.norm(self.first(batch)).relu())
        return (planes + self.other(planes)).mean((2, 3))


class Branching(Normed):
    """Cannot be traced."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch if batch.sum() > 0 else -batch)


def make_normed(kind: type[Normed] = Normed) -> Normed:
    torch.manual_seed(0)
    model = kind()
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(4, 3, 8, 8) * 3 + 1)  # the norms learn mean and variance
    return model.eval()


def count_norms(model: torch.nn.Module) -> int:
    return sum(isinstance(one, torch.nn.BatchNorm2d) for one in model.modules())


@pytest.mark.parametrize(("kind", "left"), [(Normed, 1), (Branching, 2)])
def test_folding_changes_no_answer(kind: type[Normed], left: int) -> None:
    model = make_normed(kind)
    folded = fold_batch_norms(model)
    assert (count_norms(folded), count_norms(model)) == (left, 2)
    batch = torch.rand(5, 3, 8, 8)
    torch.testing.assert_close(folded(batch), model(batch))
