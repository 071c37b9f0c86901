r"""The Inception-v3 of 2015-12-05, whose features the FID and the Inception score are defined by.

Every layer is a convolution without bias, a batch norm without scale (eps = 1e-3) and a ReLU. With its statistics m, v fixed
the batch norm is folded into the convolution, in float64, when weights are loaded:

    relu((W * x - m) / sqrt(v + eps) + beta) = relu(W' * x + b'),    W' = W / sqrt(v + eps),  b' = beta - m / sqrt(v + eps).

Its graph differs in two places from the Inception-v3 of ImageNet classifiers: average pooling leaves the padding out of the
mean, and the last block pools by the maximum. A mean over pixels commutes with a 1 x 1 convolution and its bias, so it is taken
after the convolution, when there are fewer channels.

Bytes b become the network's input, 299 x 299 pixels, in one of two ways:

    tf1        b resized as TensorFlow 1 did, pixel i of n from i size / n (no half-pixel centres), then (b - 128) / 128
    pytorch    b resized with pixel i of n from (i + 1/2) size / n - 1/2, then 2 b / 255 - 1, as pytorch-fid does

Both are bilinear, without antialiasing. The FIDs of the paper are ``tf1``. Class logits leave the bias out, as the first code
for the Inception score did.

References:
    Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016.
    Salimans et al., "Improved techniques for training GANs", NeurIPS 2016.
    Heusel et al., "GANs trained by a two time-scale update rule converge to a local Nash equilibrium", NeurIPS 2017.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from springwell.errors import UserError

Preprocessing = Literal["tf1", "pytorch"]
EPSILON = 1e-3
SIZE = 299
NUM_CLASSES = 1008


class Layer(NamedTuple):
    """Parameters of one layer: the kernel ``[out, in, h, w]`` and its batch norm, ``[out]`` each; no scale means one."""

    weight: Tensor
    beta: Tensor
    mean: Tensor
    var: Tensor
    scale: Tensor | None = None


class Convolution(nn.Module):
    """A convolution with its folded batch norm, and a ReLU."""

    weight: Tensor
    bias: Tensor

    def __init__(
        self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, padding: int | tuple[int, int] = 0
    ):
        super().__init__()
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        self.stride, self.padding = stride, padding
        self.register_buffer("weight", torch.zeros(outputs, inputs, height, width))
        self.register_buffer("bias", torch.zeros(outputs))

    def fold(self, layer: Layer) -> None:
        scale = (layer.var.double() + EPSILON).rsqrt()
        if layer.scale is not None:
            scale = scale * layer.scale.double()
        weight = layer.weight.double() * scale.view(-1, 1, 1, 1)
        self.weight = weight.float().contiguous(memory_format=torch.channels_last)
        self.bias = (layer.beta.double() - layer.mean.double() * scale).float()

    def linear(self, x: Tensor) -> Tensor:
        """What the ReLU is taken of."""
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu_()


def _averaged(convolution: Convolution, x: Tensor) -> Tensor:
    """A 1 x 1 convolution of the means over 3 x 3 pixels, fewer at the edges."""
    return F.avg_pool2d(convolution.linear(x), 3, 1, 1, count_include_pad=False).relu_()


def _halved(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2)


class BlockA(nn.Module):
    def __init__(self, inputs: int, pooled: int):
        super().__init__()
        self.branch1x1 = Convolution(inputs, 64, 1)
        self.branch5x5_1 = Convolution(inputs, 48, 1)
        self.branch5x5_2 = Convolution(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = Convolution(inputs, 64, 1)
        self.branch3x3dbl_2 = Convolution(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = Convolution(96, 96, 3, padding=1)
        self.branch_pool = Convolution(inputs, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        five = self.branch5x5_2(self.branch5x5_1(x))
        three = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), five, three, _averaged(self.branch_pool, x)], 1)


class BlockB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch3x3 = Convolution(288, 384, 3, 2)
        self.branch3x3dbl_1 = Convolution(288, 64, 1)
        self.branch3x3dbl_2 = Convolution(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = Convolution(96, 96, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, _halved(x)], 1)


def _row(inputs: int, outputs: int, length: int = 7) -> Convolution:
    return Convolution(inputs, outputs, (1, length), padding=(0, length // 2))


def _column(inputs: int, outputs: int, length: int = 7) -> Convolution:
    return Convolution(inputs, outputs, (length, 1), padding=(length // 2, 0))


class BlockC(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.branch1x1 = Convolution(768, 192, 1)
        self.branch7x7_1 = Convolution(768, width, 1)
        self.branch7x7_2 = _row(width, width)
        self.branch7x7_3 = _column(width, 192)
        self.branch7x7dbl_1 = Convolution(768, width, 1)
        self.branch7x7dbl_2 = _column(width, width)
        self.branch7x7dbl_3 = _row(width, width)
        self.branch7x7dbl_4 = _column(width, width)
        self.branch7x7dbl_5 = _row(width, 192)
        self.branch_pool = Convolution(768, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), seven, double, _averaged(self.branch_pool, x)], 1)


class BlockD(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch3x3_1 = Convolution(768, 192, 1)
        self.branch3x3_2 = Convolution(192, 320, 3, 2)
        self.branch7x7x3_1 = Convolution(768, 192, 1)
        self.branch7x7x3_2 = _row(192, 192)
        self.branch7x7x3_3 = _column(192, 192)
        self.branch7x7x3_4 = Convolution(192, 192, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        three = self.branch3x3_2(self.branch3x3_1(x))
        seven = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))
        return torch.cat([three, self.branch7x7x3_4(seven), _halved(x)], 1)


class BlockE(nn.Module):
    def __init__(self, inputs: int, maximum: bool):
        super().__init__()
        self.maximum = maximum
        self.branch1x1 = Convolution(inputs, 320, 1)
        self.branch3x3_1 = Convolution(inputs, 384, 1)
        self.branch3x3_2a = _row(384, 384, 3)
        self.branch3x3_2b = _column(384, 384, 3)
        self.branch3x3dbl_1 = Convolution(inputs, 448, 1)
        self.branch3x3dbl_2 = Convolution(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = _row(384, 384, 3)
        self.branch3x3dbl_3b = _column(384, 384, 3)
        self.branch_pool = Convolution(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        three, double = self.branch3x3_1(x), self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        pooled = self.branch_pool(F.max_pool2d(x, 3, 1, 1)) if self.maximum else _averaged(self.branch_pool, x)
        branches = [self.branch1x1(x), self.branch3x3_2a(three), self.branch3x3_2b(three)]
        return torch.cat([*branches, self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double), pooled], 1)


class Inception(nn.Module):
    """uint8 images ``[N, 1 or 3, H, W]`` -> features ``[N, 2048]``, the means of the last block over the image.

    Args:
        preprocessing: How bytes become the network's input.
    """

    num_features = 2048

    def __init__(self, preprocessing: Preprocessing = "tf1"):
        super().__init__()
        self.preprocessing = preprocessing
        self.fc: Tensor | None = None
        """Weights of the classes, ``[NUM_CLASSES, num_features]``; None, and no Inception score, if the file has none."""
        self.digest = ""
        """SHA-256 of the parameters that the features depend on, whatever file they come from."""
        self.conv2d_1a_3x3 = Convolution(3, 32, 3, 2)
        self.conv2d_2a_3x3 = Convolution(32, 32, 3)
        self.conv2d_2b_3x3 = Convolution(32, 64, 3, padding=1)
        self.conv2d_3b_1x1 = Convolution(64, 80, 1)
        self.conv2d_4a_3x3 = Convolution(80, 192, 3)
        self.mixed_5b, self.mixed_5c, self.mixed_5d = BlockA(192, 32), BlockA(256, 64), BlockA(288, 64)
        self.mixed_6a = BlockB()
        self.mixed_6b, self.mixed_6c, self.mixed_6d, self.mixed_6e = BlockC(128), BlockC(160), BlockC(160), BlockC(192)
        self.mixed_7a = BlockD()
        self.mixed_7b, self.mixed_7c = BlockE(1280, maximum=False), BlockE(2048, maximum=True)

    def convolutions(self) -> dict[str, Convolution]:
        """All layers by name, in the order of the graph."""
        return {name: module for name, module in self.named_modules() if isinstance(module, Convolution)}

    def load(self, layers: Mapping[str, Layer], fc: Tensor | None = None) -> Inception:
        """Takes parameters, by the names of :meth:`convolutions`; raises UserError if one does not fit."""
        digest = hashlib.sha256()
        for name, convolution in self.convolutions().items():
            if name not in layers:
                raise UserError(f"has no layer '{name}'")
            layer, shape = layers[name], convolution.weight.shape
            for part, values in zip(Layer._fields, layer, strict=True):
                if values is None:
                    continue
                expected = shape if part == "weight" else shape[:1]
                if values.shape != expected or not values.is_floating_point():
                    raise UserError(f"'{name}' has a {part} of shape {list(values.shape)}, not {list(expected)}")
                if not bool(torch.isfinite(values).all()) or (part == "var" and bool((values < 0).any())):
                    raise UserError(f"'{name}' has a {part} that is not finite or negative")
                if part != "scale" or bool((values != 1).any()):
                    digest.update(values.float().contiguous().numpy().tobytes())
            convolution.fold(layer)
        if fc is not None and (fc.shape != (NUM_CLASSES, self.num_features) or not bool(torch.isfinite(fc).all())):
            raise UserError(f"the fc layer is {list(fc.shape)}, not {[NUM_CLASSES, self.num_features]} finite numbers")
        self.fc, self.digest = fc, digest.hexdigest()
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.pool3(preprocess(images, self.preprocessing))

    def pool3(self, x: Tensor) -> Tensor:
        """Features of preprocessed images ``[N, 3, 299, 299]``."""
        # TF32 would change the third digit of the features.
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            x = self.conv2d_1a_3x3(x.contiguous(memory_format=torch.channels_last))
            x = _halved(self.conv2d_2b_3x3(self.conv2d_2a_3x3(x)))
            x = _halved(self.conv2d_4a_3x3(self.conv2d_3b_1x1(x)))
            x = self.mixed_5d(self.mixed_5c(self.mixed_5b(x)))
            x = self.mixed_6e(self.mixed_6d(self.mixed_6c(self.mixed_6b(self.mixed_6a(x)))))
            x = self.mixed_7c(self.mixed_7b(self.mixed_7a(x)))
            return x.mean((2, 3))


def preprocess(images: Tensor, how: Preprocessing = "tf1") -> Tensor:
    """The network's input ``[N, 3, 299, 299]`` for uint8 images ``[N, 1 or 3, H, W]``; a single channel is repeated."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise UserError(f"images are {images.dtype} {list(images.shape)}; Inception takes uint8 [N, 1 or 3, H, W]")
    x = images.float()
    if how == "pytorch":
        x = F.interpolate(x / 255, (SIZE, SIZE), mode="bilinear", align_corners=False) * 2 - 1
    else:
        x = (resize_tf1(x) - 128) / 128
    return x.expand(-1, 3, -1, -1)


def resize_tf1(x: Tensor, size: int = SIZE) -> Tensor:
    """Images ``[N, C, H, W]`` at ``size`` x ``size``, as TensorFlow 1's ``resize_bilinear`` has them by default."""
    for dim in (3, 2):
        length = x.shape[dim]
        place = torch.arange(size, device=x.device, dtype=x.dtype) * (length / size)
        first = place.long().clamp(max=length - 1)
        weight = (place - first).view((-1,) + (1,) * (3 - dim))
        low, high = x.index_select(dim, first), x.index_select(dim, (first + 1).clamp(max=length - 1))
        x = low + (high - low) * weight
    return x
