"""Private tuning: what is drawn, what is paid, what is released, and that nothing else is."""

from __future__ import annotations

import io
import json
import math
import re
import stat
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from conftest import REPOSITORY
from dotmap import DotMap

import cords_dp
from cords_dp import load_model
from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Ledger, RepeatAndSelect, TrialLaw, gaussian
from cords_dp.accounting.account import Account
from cords_dp.cli import main
from cords_dp.config import to_plain
from cords_dp.errors import AccountingError, BudgetExceededError, ConfigError, MechanismError
from cords_dp.evaluation.metrics import classifier_metrics
from cords_dp.evaluation.released import vector_size
from cords_dp.planning import Release, build_plan
from cords_dp.runs.workers import Failed, Finished, LocalWorkers, RayTasks, Started
from cords_dp.training.resolve import resolve
from cords_dp.tuning import trial as trial_module
from cords_dp.tuning.plan import goodness, read_law
from cords_dp.tuning.search import Between, OneOf, Whole, keeping_validation, read_space
from cords_dp.tuning.trial import noisy_score, run_trial
from cords_dp.tuning.tune import TrialsFailedError, Tuning, heartbeat, tune

LR = "optimizer.lr=loguniform(0.05, 5)"


def tiny(make_config, strategy="RandomDP", **changes):
    cfg = make_config(strategy, **changes)
    cfg.train_args.num_epochs = 1
    cfg.privacy.reproducible_noise = False
    return cfg


class InProcess:
    """A backend without processes."""

    def __init__(self, _workers=None):
        self.ran = []

    def run(self, jobs):
        for job in jobs:
            self.ran.append(job)
            yield Started(job)
            yield Finished(job, job.work(to_plain(job.config)))


class Pretend(InProcess):
    """Gives every trial a score of its own instead of training; fails those beyond ``until``."""

    def __init__(self, until=10**9):
        super().__init__()
        self.until, self.scores = until, {}

    def run(self, jobs):
        for job in jobs:
            yield Started(job)
            if len(self.ran) >= self.until:
                yield Failed(job, "ValueError: boom")
                continue
            self.ran.append(job)
            score = 0.111111 * (len(self.ran) % 7) + 0.0123456789 * len(self.ran)
            files = {
                "model.pt": f"weights of {job.id}".encode(),
                "result.json": json.dumps({"accuracy": 0.5 + score / 100, "epsilon": 1.0, "out": "x"}).encode(),
                "score.json": json.dumps({"score": score}).encode(),
            }
            self.scores[job.id] = score
            yield Finished(job, files)


@pytest.fixture
def several(monkeypatch):
    """Draw seven trials, whatever the law says."""
    monkeypatch.setattr(TrialLaw, "draw", lambda self, rng: 7)


# --- the space --------------------------------------------------------------------------------------------------------


def test_laws_are_read_from_words_lists_and_ray_s_domains():
    from ray import tune as ray_tune

    given = {
        "optimizer.lr": ray_tune.loguniform(0.01, 1),
        "optimizer.momentum": "uniform(0, 0.9)",
        "optimizer.type": ray_tune.choice(["sgd", "adam"]),
        "dataloader.batch_size": [64, 128],
        "train_args.num_epochs": ray_tune.randint(2, 5),
    }
    assert dict(read_space(given).laws) == {
        "optimizer.lr": Between(0.01, 1, log=True),
        "optimizer.momentum": Between(0, 0.9),
        "optimizer.type": OneOf(("sgd", "adam")),
        "dataloader.batch_size": OneOf((64, 128)),
        "train_args.num_epochs": Whole(2, 5),
    }


def test_draws_lie_where_the_laws_say():
    space = read_space([LR, "train_args.num_epochs=randint(2, 4)", "optimizer.type=choice('sgd', 'adam')"])
    rng = np.random.default_rng(0)
    drawn = [space.draw(rng) for _ in range(2000)]
    rates = np.log([d["optimizer.lr"] for d in drawn])
    assert np.log(0.05) <= rates.min() < rates.max() < np.log(5)
    assert abs(rates.mean() - np.log(0.5)) < 0.1
    assert {d["train_args.num_epochs"] for d in drawn} == {2, 3}
    assert {d["optimizer.type"] for d in drawn} == {"sgd", "adam"}


@pytest.mark.parametrize(
    "search",
    [
        [], ["optimizer.lr"], ["optimizer.lr=0.1"], ["optimizer.lr=uniform(1)"], ["optimizer.lr=uniform(2, 1)"],
        ["optimizer.lr=loguniform(0, 1)"], ["optimizer.lr=__import__('os')"], [LR, LR], ["optimizer.rate=choice(1)"],
        ["privacy.epsilon=uniform(1, 2)"], ["train_args.seed=randint(0, 9)"], ["dataset.name=choice('digits')"],
        ["dss_args.type=choice('RandomDP', 'FullDP')"], ["train_args.num_epochs=randint(1.5, 3)"],
        {"optimizer.lr": 0.1}, ["optimizer.lr=choice()"],
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_is_refused(search):
    with pytest.raises(ConfigError, match="--search"):
        read_space(search)


@pytest.mark.parametrize(("trials", "law"), [(1, "geometric"), (0, 1), (5, "poisson"), (5, -1), ("many", 0)])
def test_a_law_that_is_none_is_refused(trials, law):
    with pytest.raises(ConfigError, match=r"--trials|--law"):
        read_law(trials, law)


def test_a_value_that_the_config_refuses_is_found_before_anything_is_drawn(make_config, tmp_path):
    with pytest.raises(ConfigError, match=r"optimizer\.momentum"):
        tune(tiny(make_config), ["optimizer.momentum=uniform(0, 2)"], out=tmp_path / "t", backend=Pretend())
    assert not (tmp_path / "t").exists()


# --- one trial --------------------------------------------------------------------------------------------------------


def test_a_score_is_a_count_on_v_with_the_plan_s_noise(train, monkeypatch):
    trainer = train(train_args={"num_epochs": 1}, dataset={"validation_fraction": 0.1})
    x, y = trainer.data.validation.batch(np.arange(len(trainer.data.validation)))
    hits = int((trainer.model(x).argmax(dim=1) == y).sum())
    release = Release("score", VALIDATION_DATA, gaussian(2.5), 1.0, "")
    scores = np.array([noisy_score(trainer, release) for _ in range(60)]) * len(y)
    assert scores.std() == pytest.approx(2.5, rel=0.5)
    assert noisy_score(trainer, Release("score", VALIDATION_DATA, None, 1.0, "")) == pytest.approx(hits / len(y))
    seen = []

    def spy(total, *, sensitivity, noise_multiplier, **_):
        seen.append((float(total), sensitivity, noise_multiplier))
        return total + 3.0

    monkeypatch.setattr("cords_dp.selection.releases.gaussian_release", spy)
    assert noisy_score(trainer, release) == pytest.approx((hits + 3) / len(y))
    assert seen == [(pytest.approx(hits), 1.0, 2.5)]


def test_a_score_by_another_metric_is_one_noisy_vector_of_v(train, monkeypatch):
    trainer = train(train_args={"num_epochs": 1}, dataset={"validation_fraction": 0.1})
    seen = []

    def spy(total, *, sensitivity, noise_multiplier, **_):
        seen.append((len(total), sensitivity, noise_multiplier))
        return total

    monkeypatch.setattr("cords_dp.selection.releases.gaussian_release", spy)
    release = Release("score", VALIDATION_DATA, gaussian(1e-6), 1.0, "")
    found = noisy_score(trainer, release, "balanced_accuracy")
    assert seen == [(vector_size(10), 1.0, 1e-6)]
    x, y = trainer.data.validation.batch(np.arange(len(trainer.data.validation)))
    expected = classifier_metrics(y.numpy(), trainer.model(x).softmax(dim=1).detach().numpy())["balanced_accuracy"]
    assert found == pytest.approx(expected, abs=1e-4)
    lost = Release("score", VALIDATION_DATA, gaussian(1e6), 1.0, "")
    assert math.isnan(noisy_score(trainer, lost, "auc"))


def test_a_lost_score_is_the_worst_and_errors_count_downwards():
    assert goodness(math.nan, "auc") < goodness(0.1, "auc") < goodness(0.2, "auc")
    assert goodness(math.nan, "rmse") < goodness(0.2, "rmse") < goodness(0.1, "rmse")


def test_another_metric_is_another_tuning(make_config, tmp_path):
    from cords_dp.tuning.search import read_space

    plans = [
        Tuning.planned(
            tiny(make_config), read_space(["optimizer.lr=uniform(0.1, 1)"]), read_law(2, "geometric"), tmp_path, metric
        ).plan
        for metric in (None, "accuracy", "auc")
    ]
    assert plans[0].fingerprint == plans[1].fingerprint != plans[2].fingerprint
    assert plans[0].entries() == plans[2].entries()


def test_a_private_test_set_is_not_read_by_trials(make_config):
    config = tiny(make_config)
    config.dataset.test = "private"
    assert resolve(keeping_validation(config), plan=False).test == "unread"


def test_a_trial_by_another_plan_releases_nothing(make_config, tmp_path):
    release = Release("score", VALIDATION_DATA, gaussian(2.5), 1.0, "")
    with pytest.raises(MechanismError, match="another plan"):
        run_trial(to_plain(tiny(make_config)), score=release, plan="0" * 32, private=str(tmp_path))


def test_a_trial_on_a_machine_that_does_not_see_the_folder_has_a_temporary_one(make_config, tmp_path, monkeypatch):
    """As tasks of a Ray cluster may."""
    seen = []
    monkeypatch.setattr(trial_module, "run_and_hand_over", lambda cfg, out, **_: seen.append(out) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_trial(tiny(make_config), score=None, plan="", private=str(tmp_path / "elsewhere"))
    assert tmp_path not in seen[0].parents
    assert not seen[0].exists()


# --- the whole --------------------------------------------------------------------------------------------------------


def everything_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_best_trial_leaves_and_the_others_leave_no_trace(make_config, tmp_path, capfd, several):
    backend = Pretend()
    result = tune(tiny(make_config), [LR], trials=3, out=tmp_path / "t", backend=backend)
    trials, scores = backend.ran, backend.scores
    assert len(trials) == 7
    best = max(trials, key=lambda t: scores[t.id])
    assert result.score == scores[best.id]
    assert (tmp_path / "t/model.pt").read_text() == f"weights of {best.id}"
    shown = capfd.readouterr()
    files = everything_below(tmp_path / "t")
    assert {p.name for p in files} >= {"model.pt", "config.yaml", "privacy.md", "tuning.json", "ledger.jsonl"}
    said = shown.out + shown.err + result.text() + repr(result)
    for text in [said, *(content.decode(errors="replace") for content in files.values())]:
        for loser in (t for t in trials if t is not best):
            assert loser.id not in text
            assert f"{scores[loser.id]:.6f}"[:7] not in text
            assert f"{loser.labels['optimizer.lr']:.6f}"[:6] not in text
    assert not (tmp_path / "t/private").exists()


def test_nothing_that_is_released_depends_on_the_number_of_trials(make_config, tmp_path, monkeypatch, capfd):
    """Seven trials and one leave the same files, up to the model, its settings and random names."""
    shapes = []
    for count in (1, 7):
        monkeypatch.setattr(TrialLaw, "draw", lambda self, rng, count=count: count)
        result = tune(tiny(make_config), [LR], trials=3, out=tmp_path / str(count), backend=Pretend())
        files = {path.name: content for path, content in everything_below(tmp_path / str(count)).items()}
        own = ("settings", "score", "accuracy", "out")
        facts = {key: value for key, value in json.loads(files["tuning.json"]).items() if key not in own}
        lines = [line.split()[0] for line in result.text().splitlines()]
        shapes.append((sorted(files), facts, lines, len(files["ledger.jsonl"]), files["privacy.json"]))
    assert shapes[0] == shapes[1]
    assert capfd.readouterr().out == ""


def test_the_whole_is_charged_once_before_the_first_trial(make_config, tmp_path):
    seen = []

    class Looks(Pretend):
        def run(self, jobs):
            seen.append((tmp_path / "t/ledger.jsonl").read_text())
            mode = stat.S_IMODE((tmp_path / "t/private").stat().st_mode)
            assert mode == 0o700
            yield from super().run(jobs)

    tune(tiny(make_config), [LR], trials=3, out=tmp_path / "t", backend=Looks())
    assert seen[0].count("repeat_and_select") == 2
    ledger = Ledger.load(tmp_path / "t/ledger.jsonl")
    for side in (TRAINING_DATA, VALIDATION_DATA):
        (event,) = ledger.events(side)
        assert isinstance(event, RepeatAndSelect)
        assert (event.count, event.mean, event.shape) == (1, 3.0, 1.0)


def test_equal_settings_are_still_several_trials(make_config, tmp_path, several):
    backend = Pretend()
    tune(tiny(make_config), ["optimizer.lr=choice(0.5)"], trials=3, out=tmp_path / "t", backend=backend)
    assert len(backend.ran) == len({t.id for t in backend.ran}) == 7


def test_a_tuning_goes_on_with_the_trials_that_were_drawn(make_config, tmp_path, several):
    cfg, first, second = tiny(make_config), Pretend(until=3), Pretend()
    with pytest.raises(TrialsFailedError, match="boom"):
        tune(cfg, [LR], trials=3, out=tmp_path / "t", backend=first)
    assert not (tmp_path / "t/model.pt").exists()
    tune(cfg, [LR], trials=3, out=tmp_path / "t", backend=second)
    assert len(first.ran) + len(second.ran) == 7
    assert not {t.id for t in first.ran} & {t.id for t in second.ran}
    third = Pretend()
    again = tune(cfg, [LR], trials=3, out=tmp_path / "t", backend=third)
    assert third.ran == []
    assert json.loads((tmp_path / "t/tuning.json").read_text())["score"] == again.score


def test_trials_that_are_paid_for_are_not_drawn_again(make_config, tmp_path, several):
    cfg = tiny(make_config)
    with pytest.raises(TrialsFailedError):
        tune(cfg, [LR], trials=3, out=tmp_path / "t", backend=Pretend(until=3))
    (tmp_path / "t/private/trials.json").unlink()
    with pytest.raises(AccountingError, match="gone although they are paid for"):
        tune(cfg, [LR], trials=3, out=tmp_path / "t", backend=Pretend())


def test_a_folder_belongs_to_one_tuning(make_config, tmp_path):
    tune(tiny(make_config), [LR], trials=3, out=tmp_path / "t", backend=Pretend())
    other = tiny(make_config, privacy={"epsilon": 8.0})
    for cfg, search in ((other, [LR]), (tiny(make_config), ["optimizer.lr=choice(0.1, 1)"])):
        with pytest.raises(ConfigError, match="another"):
            tune(cfg, search, trials=3, out=tmp_path / "t", backend=Pretend())


def test_the_account_holds_one_tuning_and_not_its_trials(make_config, tmp_path, several):
    account = Account.open(tmp_path / "a.account", 4.0, 1e-5)
    cfg = tiny(make_config, privacy={"account": str(account.path)})
    tune(cfg, [LR], trials=3, out=tmp_path / "t", backend=Pretend())
    (holding,) = account.holdings().values()
    assert {type(e.event) for e in holding.entries} == {RepeatAndSelect}
    with pytest.raises(BudgetExceededError):
        tune(cfg, [LR], trials=3, out=tmp_path / "u", backend=Pretend())


def test_trials_say_nothing_to_others(make_config, tmp_path):
    cfg = tiny(make_config, train_args={"wandb": True}, ckpt={"is_save": True})
    cfg.report_tune = True
    tuning = Tuning.planned(cfg, read_space([LR]), read_law(3, "geometric"), tmp_path / "t")
    for trial in tuning._trials():
        assert "report_tune" not in trial.config
        assert not trial.config["train_args"]["wandb"]
        assert not trial.config["ckpt"]["is_save"]


@pytest.mark.parametrize("strategy", ["RandomDP", pytest.param("GLISTERDP", marks=pytest.mark.slow)])
def test_a_real_tuning_within_its_budget(make_config, tmp_path, strategy, monkeypatch):
    monkeypatch.setattr(TrialLaw, "draw", lambda self, rng: 2)
    cfg = tiny(make_config, strategy)
    search = [LR, "dataloader.batch_size=choice(64, 128)"]
    result = tune(cfg, search, trials=3, out=tmp_path / "t", backend=InProcess())
    assert result.epsilon <= 3.0
    assert -0.2 < result.score < 1.2
    report = json.loads((tmp_path / "t/privacy.json").read_text())
    assert report["epsilon_training_data"] <= 3.0
    assert report["epsilon_validation_data"] <= 3.0
    weights = torch.load(tmp_path / "t/model.pt", weights_only=True)
    loaded = load_model(tmp_path / "t")  # the best trial's model.json is beside it
    assert all(torch.equal(value, weights[name]) for name, value in loaded.model.state_dict().items())
    chosen = yaml.safe_load((tmp_path / "t/config.yaml").read_text())
    assert chosen["optimizer"]["lr"] == result.settings["optimizer.lr"]
    assert chosen["privacy"]["epsilon"] == 3.0
    # trials are scored on V, so it is split off whatever the strategy reads
    assert chosen["dataset"].get("validation_fraction") == (0.1 if strategy == "RandomDP" else None)


def test_a_tuning_without_a_validation_set_is_refused(make_config, tmp_path):
    cfg = tiny(make_config)
    cfg.dataset.validation_fraction = 0.0
    with pytest.raises(ConfigError, match=r"dataset\.validation_fraction.*compared on a validation set"):
        Tuning.planned(cfg, read_space([LR]), read_law(3, "geometric"), tmp_path / "t")


def test_all_that_tells_of_trials_lies_in_the_private_folder_also_if_they_are_killed(
    make_config, tmp_path, several, monkeypatch
):
    """The number of files in the user's cache of noise used to tell how many trials there were."""
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("CORDS_DP_CACHE", str(cache))
    build_plan.cache_clear()
    cfg = tiny(make_config)
    tuning = Tuning.planned(
        cfg, read_space(["dataloader.batch_size=randint(40, 388)"]), read_law(3, "geometric"), tmp_path / "t"
    )
    before = set(everything_below(cache))
    assert before  # what the config itself needs is no secret

    class KilledError(BaseException):
        pass

    def killed(folder):
        everything = everything_below(folder)
        assert [path.name for path in everything if path.suffix == ".log"]
        raise KilledError

    build_plan.cache_clear()  # as a worker begins
    real = trial_module.run_and_hand_over
    monkeypatch.setattr(
        trial_module, "run_and_hand_over", lambda cfg, out, **options: real(cfg, out, **options) and killed(out)
    )
    monkeypatch.setattr("tempfile.TemporaryDirectory._rmtree", lambda *_, **__: None)  # SIGKILL cleans nothing up
    with pytest.raises(KilledError):
        tuning.run(InProcess(), progress=False)
    assert set(everything_below(cache)) == before
    assert list(temporary.iterdir()) == []
    left = {path.relative_to(tmp_path / "t").parts[0] for path in everything_below(tmp_path / "t")}
    assert left <= {"private", "ledger.jsonl", "ledger.jsonl.lock"}
    assert any(path.suffix == ".log" for path in everything_below(tmp_path / "t/private"))


def test_features_that_a_setting_decides_are_not_cached(make_config, tmp_path):
    def cached(search):
        tuning = Tuning.planned(tiny(make_config), read_space([search]), read_law(3, "geometric"), tmp_path / search)
        return {trial.config["model"].get("feature_cache") for trial in tuning._trials()}

    assert cached("model.architecture=choice('TwoLayerNet')") == {False}
    assert cached("model.h1=choice(16, 32)") == {None}


def test_a_strategy_that_is_not_private_is_refused(make_config, tmp_path):
    cfg = make_config("Random", privacy={})
    del cfg["privacy"]
    with pytest.raises(ConfigError, match=r"dss_args\.type"):
        tune(cfg, [LR], out=tmp_path / "t", backend=Pretend())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_display_counts_seconds_and_nothing_else(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    with heartbeat("tuning", every=0.01):
        time.sleep(0.1)
    assert set(re.findall(r"tuning: (.*?)(?=\r|$)", shown.getvalue())) == {
        "0:00, trials are running; how many there are is secret"
    }
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with heartbeat("tuning", show=False):
        pass
    assert sys.stderr.getvalue() == ""


# --- commands and docs ------------------------------------------------------------------------------------------------


def write(cfg, path):
    path.write_text(yaml.safe_dump(to_plain(cfg)))
    return str(path)


def test_the_command_prints_the_best_settings(make_config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cords_dp.cli.arguments.backend", lambda args: Pretend())
    config = write(tiny(make_config), tmp_path / "c.yaml")
    command = ["tune", "--config", config, "--search", LR, "--trials", "3", "--out", str(tmp_path / "t")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "best optimizer.lr" in said
    assert "a secret number, by the geometric law with mean 3" in said


def test_mistakes_of_the_command_are_one_line(make_config, tmp_path, capsys):
    config = write(tiny(make_config), tmp_path / "c.yaml")
    assert main(["tune", "--config", config, "--search", "optimizer.lr=7"]) == 2
    assert capsys.readouterr().err.startswith("error: --search optimizer.lr")


def test_budget_shows_a_tuning_beside_a_single_run(make_config, tmp_path, capsys):
    config = write(tiny(make_config), tmp_path / "c.yaml")
    assert main(["budget", "--config", config, "--trials", "10", "--law", "logarithmic"]) == 0
    said = capsys.readouterr().out
    assert "a single run, settings fixed" in said
    assert "the best of K trials, logarithmic law with mean 10" in said


def docs_blocks():
    page = (REPOSITORY / "docs/from-cords.md").read_text()
    return re.findall(r"```python\n(.*?)```", page[page.index("## Tuning") :], flags=re.DOTALL)


def test_the_docs_code_runs_as_it_is_written(make_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cords_dp.tuning.tune.LocalWorkers", InProcess)
    monkeypatch.setattr(TrialLaw, "draw", lambda self, rng: 1)
    monkeypatch.chdir(tmp_path)
    exec(docs_blocks()[0], {"config": tiny(make_config)})
    assert "optimizer.lr" in capsys.readouterr().out
    assert (tmp_path / "runs/tune/privacy.md").is_file()


def hpo_config(**changes):
    """CORDS' configs/HPO, with today's Ray."""
    from ray import tune as ray_tune

    space = dict(learning_rate=ray_tune.uniform(0.1, 1.0), optimizer=ray_tune.choice(["sgd", "adam"]))
    own = dict(space=space, search_algo="TPE", num_evals=3, scheduler="asha", log_dir="RayLogs/", final_train=True,
               metric="mean_accuracy", mode="max", resources={"gpu": 0.5}, resume=False, name=None)  # fmt: skip
    return DotMap({**own, **changes})


def test_the_hpo_example_with_another_import(make_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cords_dp.tuning.hpo.HyperParamTuning._ray", lambda self: Pretend())
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="does not use search_algo, scheduler, final_train"):
        exec(docs_blocks()[1], {"config_hp_data": hpo_config(), "train_config_data": tiny(make_config)})
    assert "Best Config" in capsys.readouterr().out
    assert (tmp_path / "RayLogs/RandomDP/privacy.md").is_file()


def test_an_unknown_name_in_an_hpo_space_is_refused(make_config):
    with pytest.raises(ConfigError, match=r"space\.momentum"):
        cords_dp.HyperParamTuning(hpo_config(space={"momentum": [0.9]}), tiny(make_config))


@pytest.mark.slow
@pytest.mark.parametrize("backend", [LocalWorkers, lambda: RayTasks(cpus=0.5)])
def test_on_processes_and_on_ray(make_config, tmp_path, backend, several):
    result = cords_dp.tune(tiny(make_config), [LR], trials=3, out=tmp_path / "t", backend=backend())
    assert result.epsilon <= 3.0
    assert not (tmp_path / "t/private").exists()


def test_the_trial_s_module_says_what_it_releases():
    assert "sensitivity 1" in (trial_module.__doc__ or "")
