"""Runs under an account: what is refused gives nothing back, and of several copies of a run one goes on."""

from __future__ import annotations

import shutil

import pytest

from cords_dp import TrainClassifier
from cords_dp.accounting import Account
from cords_dp.errors import AccountingError, BudgetExceededError, DataError
from cords_dp.training.private_session import PrivateSession


@pytest.fixture
def account(tmp_path):
    return Account.open(tmp_path / "account.jsonl", 3.0, 1e-5)


@pytest.fixture
def run(make_config, account, tmp_path):
    """A function that trains FullDP on digits in a folder, under the account."""

    def train(folder, *, seed=0, resume=False, epsilon=2.6, epochs=2, account=account.path):
        place = str(tmp_path / folder)
        config = make_config(
            "FullDP",
            privacy={"epsilon": epsilon, "account": account and str(account)},
            train_args={"seed": seed, "num_epochs": epochs, "results_dir": place},
            ckpt={"is_save": True, "is_load": resume, "dir": place},
        )
        trainer = TrainClassifier(config)
        trainer.train()
        return trainer

    return train


@pytest.fixture
def killed(run, account, monkeypatch):
    """A function that trains two of five epochs and dies without a word to the account; gives its ledger."""
    real = PrivateSession.train_epoch

    def dies(self, epoch, after_step):
        if epoch == 3:
            raise KeyboardInterrupt
        return real(self, epoch, after_step)

    def train(folder):
        ledgers = []
        with monkeypatch.context() as patch:
            patch.setattr(PrivateSession, "train_epoch", dies)
            patch.setattr(PrivateSession, "close", lambda self: (self.ledger.close(), ledgers.append(self.ledger)))
            with pytest.raises(KeyboardInterrupt):
                run(folder, epochs=5)
        return ledgers[0]

    return train


@pytest.mark.parametrize("other", [{"seed": 1}, {"epsilon": 1.0}, {"epochs": 3}])
def test_a_resume_that_is_refused_gives_nothing_back(run, account, other):
    """Four runs of ε = 2 were admitted to an account of 3: each refusal made it forget what had been spent."""
    run("a")
    spent = account.share()
    assert spent > 0.5
    with pytest.raises(AccountingError):
        run("a", resume=True, **other)
    assert account.share() == pytest.approx(spent)
    with pytest.raises(BudgetExceededError):
        run("b")


@pytest.mark.parametrize("how", ["another seed", "damage"])
def test_a_killed_run_that_cannot_be_resumed_keeps_what_it_reserved(run, account, killed, how):
    trainer = killed("a")
    whole = account.share()
    if how == "damage":
        trainer.path.write_bytes(trainer.path.read_bytes()[:-40])
    with pytest.raises(AccountingError):
        run("a", epochs=5, resume=True, seed=1 if how == "another seed" else 0)
    assert account.share() == pytest.approx(whole)


def test_a_damaged_ledger_gives_nothing_back(run, account, tmp_path):
    trainer = run("a")
    spent, path = account.share(), trainer.ledger.path
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(AccountingError):
        run("a", resume=True)
    assert account.share() == pytest.approx(spent)


def test_a_run_that_never_read_a_record_gives_everything_back(run, account, monkeypatch):
    def fails(*_, **__):
        raise DataError("no such file")

    monkeypatch.setattr("cords_dp.training.preparing.build_dataset", fails)
    with pytest.raises(DataError):
        run("a")
    assert account.share() == 0


def test_copies_of_a_killed_run_are_refused_after_the_first_goes_on(run, account, killed, tmp_path):
    """Four copies that went on with other learning rates released 4.03 under an account of 3."""
    killed("a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    run("a", epochs=5, resume=True)
    with pytest.raises(AccountingError, match="has come further"):
        run("b", epochs=5, resume=True)
    assert account.share() <= 1


@pytest.mark.parametrize("other", ["none", "another"])
def test_a_run_stays_under_its_account(run, account, killed, tmp_path, other):
    killed("a")
    elsewhere = None if other == "none" else Account.open(tmp_path / "other.jsonl", 8.0, 1e-5).path
    with pytest.raises(AccountingError):
        run("a", epochs=5, resume=True, account=elsewhere)
    moved = account.path.rename(tmp_path / "moved.jsonl")
    account.path.with_name(account.path.name + ".runs").rename(tmp_path / "moved.jsonl.runs")
    run("a", epochs=5, resume=True, account=moved)
