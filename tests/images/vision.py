"""torchvision beside a torch without CUDA."""

from __future__ import annotations

import torch


def declare_operators() -> None:
    """Declares two operators that torchvision names when it is imported: its wheel is compiled for a torch with CUDA.

    No program here calls them.
    """
    if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
        for operator in ("nms", "qnms"):
            LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
