"""Film reviews on frozen sentence embeddings: test accuracy of private heads, a line for each.

    pip download --no-deps --no-binary :all: vaderSentiment     # carries hutto_ICWSM_2014.tar.gz (Hutto & Gilbert 2014)
    python benchmarks/texts.py --reviews movieReviewSnippets_GroundTruth.txt --model minilm

``--model``: a folder with all-MiniLM-L6-v2 (docs/your-own-data.md, Text). Embedding takes minutes, once.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import pandas as pd

from cords_dp import config_for
from cords_dp.report.tables import mean_table
from cords_dp.runs.jobs import Job
from cords_dp.runs.sweep import run_jobs
from cords_dp.runs.workers import LocalWorkers

HEADS = {
    "LinearHead, FullDP": ("FullDP", {}, {}, (1.0, 3.0)),
    "MLPHead of 32 units, FullDP": ("FullDP", {"architecture": "MLPHead", "args": {"width": 32}}, {}, (1.0, 3.0)),
    "LinearHead, GLISTERDP, a half": ("GLISTERDP", {}, {"fraction": 0.5}, (3.0,)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/texts"))
    args = parser.parse_args()
    table = write_csv(args.reviews, args.out / "reviews.csv")
    dataset = {"path": str(table), "classes": ["bad", "good"], "datadir": str(args.data)}
    jobs = []
    for name, (strategy, model, subset, epsilons) in HEADS.items():
        for epsilon in epsilons:
            for seed in range(args.seeds):
                config = config_for(
                    "text",
                    strategy,
                    dataset=dataset,
                    model={"features": f"sentence:{args.model}", **model},
                    dss_args=subset,
                    train_args={"seed": seed, "device": "cpu", "print_every": 1000},
                    privacy={"epsilon": epsilon, "delta": 1e-5},
                )
                jobs.append(Job(config, {"head": name, "budget": epsilon, "seed": seed}))
    frame = run_jobs(jobs, args.out, LocalWorkers(), title="texts").frame
    print(mean_table(pd.DataFrame(frame), ["head", "budget"]).to_string(index=False))


def write_csv(reviews: Path, path: Path) -> Path:
    """Sentences with a rating above or below 0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(reviews, encoding="utf-8", errors="replace") as source, open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for fields in (line.rstrip("\n").split("\t") for line in source):
            if len(fields) >= 3 and float(fields[1]) != 0:
                writer.writerow([fields[2], "good" if float(fields[1]) > 0 else "bad"])
    return path


if __name__ == "__main__":
    main()
