"""Train one CORDS config: python run_experiment.py --config configs/random_dp_mnist.py"""

import sys

from cords_dp.cli import run_main

if __name__ == "__main__":
    sys.exit(run_main())
