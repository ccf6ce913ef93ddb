"""Numbers that the paper prints: its table of test accuracies under mild class imbalance.

Its figures carry no numbers in the text, so nothing is quoted for them. Where its text makes a claim about a figure
that can be checked, `CLAIMS` has it in our words.
"""

from __future__ import annotations

import pandas as pd

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)

# dataset, method, ε → accuracy at k = 0.1 … 0.5 of |D|
_IMBALANCE = {
    ("mnist", "RandomDP", 3.0): (0.6982, 0.9103, 0.9474, 0.9602, 0.9649),
    ("mnist", "GLISTERDP", 3.0): (0.7231, 0.9155, 0.9490, 0.9609, 0.9657),
    ("mnist", "RandomDP", 8.0): (0.8979, 0.9599, 0.9707, 0.9739, 0.9760),
    ("mnist", "GLISTERDP", 8.0): (0.9059, 0.9617, 0.9710, 0.9744, 0.9768),
    ("cifar100", "RandomDP", 3.0): (0.0162, 0.0249, 0.0510, 0.0664, 0.0854),
    ("cifar100", "GLISTERDP", 3.0): (0.0162, 0.0274, 0.0483, 0.0734, 0.0829),
    ("cifar100", "RandomDP", 8.0): (0.0344, 0.0838, 0.1053, 0.1337, 0.1385),
    ("cifar100", "GLISTERDP", 8.0): (0.0362, 0.0810, 0.1118, 0.1234, 0.1433),
    ("cifar10", "RandomDP", 3.0): (0.2872, 0.3631, 0.4174, 0.4460, 0.4598),
    ("cifar10", "GLISTERDP", 3.0): (0.2751, 0.3719, 0.4189, 0.4509, 0.4669),
    ("cifar10", "RandomDP", 8.0): (0.3894, 0.4523, 0.4856, 0.5026, 0.5317),
    ("cifar10", "GLISTERDP", 8.0): (0.3878, 0.4564, 0.4808, 0.5111, 0.5494),
}

# dataset, who, ε → accuracy at δ = 1e-5, as published
_PUBLISHED = {
    ("mnist", "scattering, linear or CNN (Tramèr & Boneh, 2021)"): {3.0: 0.987},
    ("cifar10", "scattering, linear (Tramèr & Boneh, 2021)"): {3.0: 0.670},
    ("cifar10", "scattering, CNN (Tramèr & Boneh, 2021)"): {3.0: 0.693},
    ("cifar10", "scattering, CNN, reproduced in 2024"): {1.0: 0.609, 2.0: 0.670, 4.0: 0.697, 8.0: 0.724},
    ("cifar10", "WRN-40-4, a hundred times the cost, GPU (De et al., 2022)"): {8.0: 0.814},
    ("cifar10", "DP-RandP, WRN on random processes, GPU (Tang et al., 2023)"): {1.0: 0.723},
}

CLAIMS = {
    "main": "FullDP is best everywhere, and RandomDP beats GLISTER-DP at every ε on MNIST and CIFAR-10.",
    "imbalance": "Under mild class imbalance GLISTER-DP is a little better than RandomDP.",
    "paper": "GLISTER-DP is a little better than RandomDP under mild class imbalance; FullDP is best.",
    "synthetic": "Under a strong shift GLISTER-DP has a clear edge, which goes away as the subset grows.",
    "timing": "RandomDP converges fastest and GLISTER-DP slowest, at every subset size.",
    "allocation": "Accuracy only rises as more of the budget goes to training: there is no sweet spot.",
    "gains": "The distribution that the exponential mechanism samples from is almost uniform.",
}


def imbalance_table() -> pd.DataFrame:
    """Return the paper's table in long form: dataset, strategy, epsilon, fraction, paper_accuracy."""
    rows = [
        {"dataset": dataset, "strategy": method, "epsilon": epsilon, "fraction": k, "paper_accuracy": accuracy}
        for (dataset, method, epsilon), values in _IMBALANCE.items()
        for k, accuracy in zip(FRACTIONS, values, strict=True)
    ]
    return pd.DataFrame(rows)


def published_frontier() -> pd.DataFrame:
    """Return what others reached without public data: dataset, who, epsilon, accuracy."""
    return pd.DataFrame(
        {"dataset": dataset, "who": who, "epsilon": epsilon, "accuracy": accuracy}
        for (dataset, who), values in _PUBLISHED.items()
        for epsilon, accuracy in values.items()
    )
