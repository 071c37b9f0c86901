"""Times our Inception and that of a TorchScript file side by side: python benchmarks/inception.py --inception PATH.pt."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from springwell.evaluation.inception import preprocess
from springwell.evaluation.weights import find_weights, load_inception


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inception", type=Path, help="a TorchScript file; default: the one that springwell finds")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = find_weights(options.inception)
    if path is None or path.suffix != ".pt":
        raise SystemExit(f"--inception {path}: needs a TorchScript file (.pt) of features to compare with")
    ours, theirs = load_inception(path), torch.jit.load(path).eval()
    images = torch.randint(0, 256, (options.batch, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    x = preprocess(images)
    works = {"TorchScript": lambda: theirs(x), "ours": lambda: ours.pool3(x), "ours with resizing": lambda: ours(images)}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    features = {}
    with torch.inference_mode():
        # The first rounds, in which TorchScript optimises itself, do not count.
        for i in range(options.repeats + 3):
            for name, work in works.items():
                start = time.process_time()
                features[name] = work()
                if i >= 3:
                    seconds[name].append(time.process_time() - start)
    difference = float((features["ours"] - features["TorchScript"]).norm() / features["TorchScript"].norm())
    how = f"median of {options.repeats} alternating batches of {options.batch}, {options.threads} thread(s), CPU time"
    for name, times in seconds.items():
        print(f"{name:<20}{options.batch / statistics.median(times):6.2f} images/s   ({how})")
    ratios = [a / b for a, b in zip(seconds["TorchScript"], seconds["ours"], strict=True)]
    print(
        f"ratio of throughputs, ours to TorchScript: {statistics.median(ratios):.2f} ({min(ratios):.2f} ... {max(ratios):.2f})"
    )
    print(f"relative difference of the features: {difference:.1e}")


if __name__ == "__main__":
    main()
