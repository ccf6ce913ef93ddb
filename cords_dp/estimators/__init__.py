"""scikit-learn's face of a private run: `PrivateClassifier`, `PrivateRegressor` and `PrivateTuning`."""
