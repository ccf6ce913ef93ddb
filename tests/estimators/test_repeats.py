"""What fits on the same records add up to: the most burdened record counts, and digests tell records apart."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

from cords_dp import PrivateClassifier
from cords_dp.accounting import Account
from cords_dp.data.record_set import array_set
from cords_dp.errors import BudgetExceededError, PrivacyWarning
from cords_dp.estimators import repeats
from cords_dp.estimators.repeats import row_digests

QUICK = {"privacy": {"accountant": "rdp"}, "train_args": {"num_epochs": 1}}


@pytest.fixture(autouse=True)
def first_fit():
    repeats.forget()
    yield
    repeats.forget()


def made_up(n=100, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.integers(0, 2, n)


def estimator(epsilon=1.0, **parameters):
    return PrivateClassifier(epsilon, data_norm=3.0, classes=[0, 1], config=QUICK, **parameters)


def test_digests_are_equal_for_equal_records_only():
    X, y = made_up(500)
    X[7], y[7] = X[3], y[3]
    digests = row_digests(array_set(X.astype(np.float32), y))
    assert digests[7] == digests[3]
    assert len(np.unique(digests)) == 499
    other = row_digests(array_set(X.astype(np.float32), 1 - y))
    assert not np.isin(digests, other).any()  # a label counts


def test_a_first_fit_says_nothing_and_a_second_what_both_add_up_to():
    X, y = made_up()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert estimator().fit(X, y).privacy_.repeated is None
        assert estimator().fit(*made_up(seed=1)).privacy_.repeated is None  # other records
    with pytest.warns(PrivacyWarning, match=r"read 2 times .* ε = 3 at δ = 2e-05"):
        again = estimator(2.0).fit(X, y).privacy_.repeated
    assert (again.fits, again.epsilon) == (2, 3.0)


def test_a_few_equal_rows_may_be_other_people_s():
    X, y = made_up()
    more, labels = made_up(seed=1)
    more[:10], labels[:10] = X[:10], y[:10]
    estimator().fit(X, y)
    with pytest.warns(
        PrivacyWarning, match=r"^some rows, .* equal those of earlier fits; if they are the same people's, these"
    ):
        assert not estimator().fit(more, labels).privacy_.repeated.mostly


def test_other_rows_of_the_same_owners_count_as_theirs():
    people = [f"p{i // 4}" for i in range(100)]
    model = estimator().fit(*made_up(), owners=people)
    with pytest.warns(PrivacyWarning, match="names of owners"):
        again = model.evaluate(*made_up(seed=1), owners=[f" {name}" for name in people])
    assert (again.repeated.fits, again.repeated.epsilon) == (2, 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strangers = [None] * 50 + [f"q{i}" for i in range(50)]
        assert model.evaluate(*made_up(seed=2), owners=strangers).repeated is None


def test_what_a_fit_cost_is_shown_in_a_line():
    X, y = made_up()
    assert repr(estimator().fit(X, y).privacy_).startswith("Privacy(ε = 0.99")
    assert repr(estimator(None).fit(X, y).privacy_) == "Privacy(none: epsilon=None)"


def test_in_cross_validation_a_record_pays_for_the_folds_that_train_on_it():
    X, y = made_up()
    with pytest.warns(PrivacyWarning) as told:
        cross_val_score(estimator(), X, y, cv=5)
    assert len([w for w in told if "adds up" in str(w.message)]) == 2  # at two and at four
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last = estimator().fit(X, y).privacy_.repeated
    assert (last.fits, last.epsilon) == (5, 5.0)  # four of the five folds, and this one


def test_a_search_under_an_account_ends_where_the_total_does(tmp_path):
    Account.open(tmp_path / "account", epsilon=2.0, delta=1e-4)
    X, y = made_up()
    search = GridSearchCV(
        estimator(account=tmp_path / "account"), {"lr": [0.1, 0.5]}, cv=5, error_score="raise", refit=False
    )
    with pytest.raises(BudgetExceededError, match="allows"):
        search.fit(X, y)


def test_a_fit_without_privacy_leaves_none():
    X, y = made_up()
    estimator().fit(X, y)
    with pytest.warns(PrivacyWarning, match="no privacy at all"):
        estimator(None).fit(X, y)
