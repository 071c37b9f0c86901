"""Times the preparation of a folder of JPEGs and the drawing of batches: python benchmarks/data.py --num 3000 --workers 2."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from springwell.data.images import prepare_images
from springwell.data.options import ImageOptions
from springwell.data.source import open_data
from springwell.noise import Noise
from springwell.progress import Terminal


def write_photographs(folder: Path, num: int) -> None:
    """Smooth random JPEGs of 640 x 480 pixels."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(num):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize((640, 480), Image.Resampling.BICUBIC).save(folder / f"{i:06d}.jpg", quality=90)


def cpu_seconds() -> float:
    """CPU time of this process and of those it has waited for."""
    return sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photographs(folder / "photographs", options.num)
        wall, cpu = time.perf_counter(), cpu_seconds()
        spec, out = f"folder:{folder / 'photographs'}", folder / "prepared"
        prepare_images(spec, out, ImageOptions(image_size=64), options.workers, Terminal())
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        print(
            f"prepare: {options.num / wall:.0f} images/s with {options.workers} workers, {options.num / cpu:.0f} per CPU second"
        )
        for spec in ("digits", f"prepared:{out}"):
            for images in (ImageOptions(), ImageOptions(flip=True), ImageOptions(flip=True, dequantise=True)):
                data, seconds = open_data(spec, images), []
                for stream in range(100):
                    noise = Noise(0, torch.arange(256), stream)
                    start = time.process_time()
                    data.sample(noise)
                    seconds.append(time.process_time() - start)
                how = f"flip {images.flip}, dequantise {images.dequantise}"
                shape = " x ".join(map(str, data.event_shape))
                print(f"batch of 256, {shape}, {how}: {1e3 * np.median(seconds):.1f} ms of CPU time (median of 100)")


if __name__ == "__main__":
    main()
