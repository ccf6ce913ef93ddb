"""How far the numbers of a private test set are off: ``python benchmarks/private_test.py [--records N] [--repeats N]``.

Made-up labels and scores of a classifier of two classes (a fifth of the records positive), released as a run releases
them, again and again with fresh noise. Printed for every metric: its exact value, the mean distance of the released
value from it, and how often the 95 % interval holds the exact value. The interval also covers the draw of the test
records, which is the same in all repeats: so it should hold more often than in 95 %.
"""

from __future__ import annotations

import argparse

import numpy as np

from cords_dp.accounting import calibrate, epsilon_bound, gaussian
from cords_dp.evaluation.metrics import classifier_metrics
from cords_dp.evaluation.released import ReleasedTest, classifier_sum
from cords_dp.noise.generators import secure_generator


def people(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = (rng.random(n) < 0.2).astype(np.int64)
    logits = 1.8 * labels - 1.5 + rng.normal(size=n)
    p = 1 / (1 + np.exp(-logits))
    return labels, np.stack([1 - p, p], axis=1)


def noise_for(epsilon: float, delta: float) -> float:
    return calibrate(
        lambda sigma: epsilon_bound([gaussian(sigma)], delta, "auto").epsilon, epsilon, start=4 / epsilon, rising=False
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=100)
    args = parser.parse_args()
    labels, probabilities = people(args.records)
    exact, total = classifier_metrics(labels, probabilities), classifier_sum(labels, probabilities)
    rng, delta = secure_generator(), min(1e-5, 0.1 / args.records)
    print(f"{args.records} test records, delta {delta:g}, {args.repeats} releases each; distances in points (1/100)")
    print(f"{'epsilon':>7}  {'sigma':>6}  {'metric':<18} {'exact':>7} {'mean distance':>14} {'interval holds':>15}")
    for epsilon in (0.5, 1.0, 3.0):
        sigma = noise_for(epsilon, delta)
        found = [
            ReleasedTest(2, sigma, total + rng.normal(scale=sigma, size=len(total))).metrics()
            for _ in range(args.repeats)
        ]
        for name, value in exact.items():
            rows = [one[name] for one in found]
            far = np.mean([abs(row["value"] - value) for row in rows])
            held = np.mean([row["low"] <= value <= row["high"] for row in rows])
            print(
                f"{epsilon:>7g}  {sigma:>6.2f}  {name:<18} {100 * value:>7.2f} {100 * far:>14.2f} {100 * held:>13.0f} %"
            )


if __name__ == "__main__":
    main()
