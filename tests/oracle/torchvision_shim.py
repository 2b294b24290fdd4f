"""Makes torchvision's transforms importable beside a torch of another build: `install()` before importing transformers.

torchvision stays off the path of everything else, because serving and the other tests must work without it. Its C++
operators do not load on this torch, so their names are defined empty: boxes and video decoding stay unusable.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / ".venv" / "torchvision"
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois) -> Tensor",
    "roi_pool(Tensor input, Tensor rois) -> (Tensor, Tensor)",
    "ps_roi_align(Tensor input, Tensor rois) -> (Tensor, Tensor)",
    "ps_roi_pool(Tensor input, Tensor rois) -> (Tensor, Tensor)",
    "deform_conv2d(Tensor input, Tensor weight) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois) -> Tensor",
    "_roi_pool_backward(Tensor grad, Tensor rois) -> Tensor",
    "_ps_roi_align_backward(Tensor grad, Tensor rois) -> Tensor",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input) -> Tensor",
)
LIBRARIES: list[Any] = []  # definitions live as long as theirs does


def install() -> None:
    """Put torchvision on the path of this process, once; transformers stays offline and on one thread."""
    if LIBRARIES:
        return
    import torch

    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(1)
    sys.path.insert(0, str(FOLDER))
    LIBRARIES.append(torch.library.Library("torchvision", "FRAGMENT"))
    for schema in SCHEMAS:
        LIBRARIES[0].define(schema)
