"""A loop of the user's own: the docs' code as it is written, what is charged, and what is refused."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import CE, Net, data_of
from conftest import REPOSITORY
from dotmap import DotMap
from torch import nn
from torch.utils.data import DataLoader, Subset

import cords_dp
from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA
from cords_dp.accounting.account import Account
from cords_dp.data.record_set import array_set
from cords_dp.errors import BudgetExceededError, ConfigError, DataError, MechanismError, UnsupportedModelError
from cords_dp.processes import World
from cords_dp.training.loop import PrivateLoader
from cords_dp.training.step import PrivateEngine

EPOCHS = 3
QUICK = {"epsilon": 3.0, "accountant": "rdp", "grad_sample_mode": "hooks"}
KINDS = ("GLISTERDP", "RandomDP", "FullDP")


def args_of(**changes):
    """dss_args as CORDS' notebook writes them."""
    own = dict(model=Net(), loss=CE, eta=0.01, num_classes=3, num_epochs=EPOCHS, device="cpu", fraction=0.5,
               select_every=2, kappa=0, linear_layer=False, selection_type="SL", greedy="Stochastic")  # fmt: skip
    return DotMap({**own, **changes})


def loader_of(kind="RandomDP", *, train=None, folder=None, args=None, batch_size=50, **privacy):
    loaders = DataLoader(train or data_of(400, 0), batch_size=20), DataLoader(data_of(100, 1), batch_size=20)
    return getattr(cords_dp, f"{kind}DataLoader")(
        *loaders, args or args_of(), logging.getLogger("loop"), batch_size=batch_size, shuffle=True, pin_memory=False,
        privacy={**QUICK, **privacy}, folder=folder,
    )  # fmt: skip


def private(loader, model=None, lr=0.1):
    torch.manual_seed(0)
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return loader.make_private(model, optimizer)


def one_step(model, optimizer, batch, weigh=torch.dot):
    x, y, weights = batch
    optimizer.zero_grad()
    loss = weigh(CE(model(x), y), weights)
    loss.backward()
    optimizer.step()


def flat(model):
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


# --- as it is written -------------------------------------------------------------------------------------------------


def code_blocks(section):
    page = (REPOSITORY / "docs/from-cords.md").read_text()
    part = re.split(r"^## ", page, flags=re.MULTILINE)
    text = next(p for p in part if p.startswith(section + "\n"))
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def around_the_loop(folder, model=None):
    """What the notebook has before its loop."""
    logger = logging.Logger("notebook")
    logger.addHandler(logging.FileHandler(folder / "results.log"))
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    names = dict(torch=torch, model=model, optimizer=optimizer, scheduler=scheduler, criterion_nored=CE, device="cpu",
                 num_epochs=EPOCHS, logger=logger, dss_args=args_of(model=model),
                 trainloader=DataLoader(data_of(300, 0), batch_size=20),
                 valloader=DataLoader(data_of(80, 1), batch_size=20))  # fmt: skip
    return names


def test_the_loop_of_the_docs_runs_and_states_its_cost(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cords_dp.accounting.composition._asked", lambda *_: ("rdp",))  # answers at once
    names = around_the_loop(tmp_path)
    before = flat(names["model"])
    exec(code_blocks("The loop")[0], names)
    assert not torch.equal(before, flat(names["model"]))
    assert 2.9 < float(capsys.readouterr().out.split()[0]) <= 3.0
    assert "differentially private for zero-out of one record" in (tmp_path / "privacy.md").read_text()
    report = json.loads((tmp_path / "privacy.json").read_text())
    assert report["epsilon"] <= 3.0
    assert any("the training loop itself shows" in item for item in report["not_covered"])
    assert (tmp_path / "ledger.jsonl").is_file()
    assert names["optimizer"].param_groups[0]["lr"] < 1e-9  # the scheduler that was made before goes on


def says_what_a_loop_must_not_do(text):
    beginning = " ".join(text.split())[:400]
    return all(word in beginning for word in ("decide", "exact values", "batches", "learning rate"))


def test_what_only_the_loop_s_author_can_know_is_said_first(tmp_path):
    """A learning rate that is set by a batch tells one record apart at any ε, and nothing here can prevent it."""
    first = loader_of(folder=tmp_path).statement().splitlines()[2]
    report = json.loads((tmp_path / "privacy.json").read_text())
    for text in (first, report["statement"], report["not_covered"][0]):
        assert says_what_a_loop_must_not_do(text), text
    assert first.index("only if") < first.index("differentially private")


def test_docs_say_first_what_a_loop_must_not_do():
    section = (REPOSITORY / "docs/from-cords.md").read_text().split("\n## The loop\n")[1]
    page = (REPOSITORY / "docs/privacy.md").read_text()
    own, uncovered = (page.split(f"\n## {title}\n")[1] for title in ("Custom training loops", "Not covered"))
    docstrings = [getattr(cords_dp, f"{kind}DataLoader").__doc__ for kind in KINDS]
    docstrings += [PrivateLoader.__doc__, sys.modules[PrivateLoader.__module__].__doc__]
    for text in (section, own, uncovered, *docstrings):
        assert says_what_a_loop_must_not_do(text), text[:400]


def test_the_statement_of_a_loop_without_privacy_promises_nothing(tmp_path):
    assert "only if" not in loader_of(folder=tmp_path, epsilon=math.inf).statement()
    seeded = loader_of(folder=tmp_path, reproducible_noise=True).statement()
    assert seeded.splitlines()[2].startswith("NOT PRIVATE")


def test_a_loop_refuses_sets_that_share_records_before_anything_is_spent(tmp_path):
    """A trainer did, a loop did not: its statement said max(ε_D, ε_V) for a record that was in both."""
    whole = data_of(400, 0)

    def made(kind, train, validation):
        loaders = DataLoader(train), DataLoader(validation)
        return getattr(cords_dp, f"{kind}DataLoader")(*loaders, args_of(), None, privacy=QUICK, folder=tmp_path)

    for train, validation in ((whole, whole), (Subset(whole, range(300)), Subset(whole, range(299, 400)))):
        with pytest.raises(DataError, match="trainset and validset share records"):
            made("GLISTERDP", train, validation)
    assert not list(tmp_path.rglob("ledger*"))
    made("FullDP", whole, whole)  # reads no V
    made("GLISTERDP", Subset(whole, range(300)), Subset(whole, range(300, 400)))


def test_a_fraction_that_means_nothing_to_the_loader_is_told(caplog):
    loader_of("FullDP", args=args_of(fraction=0.5))
    assert "dss_args.fraction = 0.5 has no effect" in caplog.text
    caplog.clear()
    loader_of("RandomDP", args=args_of(fraction=0.5))
    assert not caplog.records


def test_at_most_five_lines_of_the_loop_are_marked_as_changed():
    assert len(re.findall(r"# [1-9]", code_blocks("The loop")[0])) <= 5


def test_the_lightning_module_of_the_docs(tmp_path):
    pytest.importorskip("lightning")
    names = around_the_loop(tmp_path)
    names["dataloader"] = loader_of(folder=tmp_path)
    before = flat(names["model"])
    exec(code_blocks("The loop")[1], names)
    loader = names["dataloader"]
    planned = loader.plan.shape.steps
    assert sum(e.count for e in loader.ledger.events(TRAINING_DATA)) == planned
    assert loader.spent().epsilon <= 3.0
    assert not torch.equal(before, flat(names["model"]))


def test_an_optimizer_steps_by_closure_as_lightning_asks():
    loader = loader_of()
    model, optimizer = private(loader)
    for x, y, weights in loader:

        def closure(x=x, y=y, weights=weights):
            loss = torch.dot(CE(model(x), y), weights)
            optimizer.zero_grad()
            loss.backward()
            return loss

        before = flat(model)
        assert math.isfinite(float(optimizer.step(closure=closure).detach()))
        assert not torch.equal(before, flat(model))


@pytest.mark.skipif("CORDS_CHECKOUT" not in os.environ, reason="CORDS_CHECKOUT names no checkout of CORDS")
def test_the_notebook_s_own_cells_with_five_lines_changed(tmp_path, monkeypatch):
    """Every cell of CORDS' custom-train notebook from its loaders on, on tiny images and a small model."""
    book = "examples/SL/image_classification/python_notebooks/CORDS_SL_CIFAR10_Custom_Train.ipynb"
    cells = json.loads((Path(os.environ["CORDS_CHECKOUT"]) / book).read_text())["cells"]
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    code = code[code.index("trn_batch_size") :]
    changes = [
        ("from cords.utils.data.dataloader.SL.adaptive import GLISTERDataLoader, OLRandomDataLoader, \\\n"
         "    CRAIGDataLoader, GradMatchDataLoader, RandomDataLoader", "from cords_dp import GLISTERDPDataLoader"),
        ("dataloader = GLISTERDataLoader(", "dataloader = GLISTERDPDataLoader("),
        ("pin_memory=False)\n", "pin_memory=False, privacy=dict(epsilon=3, accountant='rdp'))\n"
         "model, optimizer = dataloader.make_private(model, optimizer)\n"),
        ("torch.dot(losses, weights/(weights.sum()))", "torch.dot(losses, weights)"),
    ]  # fmt: skip
    small = [("'cuda'", "'cpu'"), ("num_epochs = 300", "num_epochs = 2"), ("num_epochs=300", "num_epochs=2"),
             ("from cords.utils.models import ResNet18", ""), ("ResNet18(10)", "Net(12, 10)"),
             ("select_every=20", "select_every=1"), ("fraction=0.1", "fraction=0.5")]  # fmt: skip
    for old, new in [*changes, *small]:
        assert old in code, old
        code = code.replace(old, new)
    rng = np.random.default_rng(0)
    sets = [array_set(rng.normal(size=(n, 12)).astype(np.float32), rng.integers(0, 10, n)) for n in (200, 80, 40)]
    monkeypatch.chdir(tmp_path)
    import time

    names = dict(zip(("trainset", "validset", "testset"), sets, strict=True), torch=torch, nn=nn, np=np, time=time,
                 Net=Net, optim=torch.optim, os=os)  # fmt: skip
    exec(code, names)
    assert 2.9 < names["dataloader"].spent().epsilon <= 3.0


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_takes_the_planned_steps_and_charges_them(kind):
    quick = {"mechanism": "match"} if kind == "GLISTERDP" else {}  # the default takes longer to plan
    loader = loader_of(kind, args=args_of(**quick))
    model, optimizer = private(loader)
    assert loader.spent().epsilon == 0
    for _ in range(EPOCHS):
        assert len(loader) == loader.plan.shape.epochs[0].steps
        for batch in loader:
            one_step(model, optimizer, batch)
    planned = loader.plan.cost()
    assert loader.spent().training_data.epsilon == pytest.approx(planned.training_data.epsilon)
    assert bool(loader.ledger.events(VALIDATION_DATA)) == (kind == "GLISTERDP")


def test_a_step_is_the_engine_s_on_the_drawn_batch_with_the_plan_s_noise(monkeypatch):
    """What the loop computed of the batch enters the step nowhere, not even what it wrote into the batch."""
    seen = []
    step = PrivateEngine.step

    def spy(self, x, y, weights):
        seen.append((x.clone(), self.optimizer.noise_multiplier, self.optimizer.expected_batch_size))
        return step(self, x, y, weights)

    loader = loader_of()
    model, optimizer = private(loader)
    monkeypatch.setattr(PrivateEngine, "step", spy)
    for x, y, weights in loader:
        torch.dot(CE(model(x), y), weights).backward()
        drawn = x.clone()
        x.fill_(1e6)
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e6)
        before = flat(model)
        optimizer.step()
        assert torch.equal(seen[-1][0], drawn)
        assert seen[-1][1:] == (loader.plan.sigma, 50)
        assert float((flat(model) - before).norm()) < 100
        break


def test_the_model_that_is_handed_back_is_the_user_s_and_saves_plainly():
    loader = loader_of()
    model = Net()
    back, _ = private(loader, model)
    assert back is model
    assert list(back.state_dict()) == list(Net().state_dict())
    twin = copy.deepcopy(back)  # as who keeps an average does
    assert next(iter(twin._forward_hooks.values())) is next(iter(back._forward_hooks.values()))


def test_batch_norm_is_replaced_and_the_optimizer_follows():
    torch.manual_seed(0)  # with a few seeds in a hundred GroupNorm divides by almost nothing, and no mode is exact
    net = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(24, 3)
    )
    loader = loader_of()
    model, optimizer = private(loader, net)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    before = flat(model)
    one_step(model, optimizer, next(iter(loader)))
    assert not torch.equal(before, flat(model))


def test_an_empty_batch_takes_its_step_without_the_loop():
    loader = loader_of(batch_size=1, args=args_of(num_epochs=1, fraction=0.1))
    model, optimizer = private(loader)
    before, seen = flat(model), 0
    for batch in loader:
        seen += 1
        one_step(model, optimizer, batch)
    assert seen < loader.plan.shape.steps == 40  # e^-1 of them are empty
    assert not torch.equal(before, flat(model))
    assert loader._session.steps._left == 0


# --- what is refused, and what is charged --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weigh",
    [
        lambda losses, weights: torch.dot(losses, weights / weights.sum()),
        lambda losses, weights: losses.mean(),
        lambda losses, weights: torch.dot(losses, weights) / len(losses),
        lambda losses, weights: torch.dot(losses, weights) ** 2,
    ],
)
def test_a_loss_that_couples_records_is_refused_at_the_first_step(weigh):
    loader = loader_of()
    model, optimizer = private(loader)
    before = flat(model)
    with pytest.raises(MechanismError, match=r"loss = torch.dot\(losses, weights\)"):
        one_step(model, optimizer, next(iter(loader)), weigh)
    with pytest.raises(MechanismError, match=r"before optimizer\.step"):
        optimizer.step()
    assert torch.equal(before, flat(model))


def test_a_record_that_is_not_finite_does_not_show_in_the_check():
    data = data_of(400, 0)
    data.store.x[:] = torch.nan
    loader = loader_of(train=data)
    model, optimizer = private(loader)
    one_step(model, optimizer, next(iter(loader)))
    assert bool(torch.isfinite(flat(model)).all())


def test_a_second_step_on_a_batch_is_refused():
    loader = loader_of()
    model, optimizer = private(loader)
    batch = next(iter(loader))
    one_step(model, optimizer, batch)
    before = flat(model)
    with pytest.raises(MechanismError, match="good for one step"):
        one_step(model, optimizer, batch)
    assert torch.equal(before, flat(model))


def test_a_step_before_the_first_batch_is_refused():
    loader = loader_of()
    _, optimizer = private(loader)
    with pytest.raises(MechanismError, match="no batch to step on"):
        optimizer.step()


def test_a_batch_without_a_step_stays_charged_and_its_step_is_not_saved_up():
    loader = loader_of()
    model, optimizer = private(loader)
    batches = iter(loader)
    next(batches)  # and no step
    one_step(model, optimizer, next(batches))
    assert sum(e.count for e in loader.ledger.events(TRAINING_DATA)) == loader.plan.shape.epochs[0].steps
    with pytest.raises(MechanismError, match="good for one step"):
        optimizer.step()


def test_breaking_out_of_an_epoch_is_charged_in_full():
    loader = loader_of()
    model, optimizer = private(loader)
    for _ in range(EPOCHS):
        for batch in loader:
            one_step(model, optimizer, batch)
            break
    assert loader.spent().epsilon == pytest.approx(loader.plan.cost().epsilon)
    with pytest.raises(BudgetExceededError, match="num_epochs"):
        next(iter(loader))


def test_an_epoch_that_was_left_gives_no_more_batches():
    loader = loader_of()
    private(loader)
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(MechanismError, match="another epoch has begun"):
        next(first)


def test_the_optimizer_that_was_handed_in_refuses_to_step():
    loader = loader_of()
    model = Net()
    original = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = loader.make_private(model, original)
    x, y, weights = next(iter(loader))
    torch.dot(CE(model(x), y), weights).backward()
    before = flat(model)
    with pytest.raises(MechanismError, match="the one that make_private returned"):
        original.step()
    assert torch.equal(before, flat(model))
    optimizer.step()
    assert not torch.equal(before, flat(model))


def test_other_records_than_the_drawn_ones_are_refused():
    loader = loader_of()
    model, _ = private(loader)
    x, y, weights = next(iter(loader))
    with pytest.raises(MechanismError, match="other records"):
        torch.dot(CE(model(x.flip(0)), y), weights).backward()
    model.eval()
    model(x.flip(0))  # evaluating is free to look at anything


class Capped(Net):
    """Shortens its weights by hand, once: the step's own pass finds nothing left to change."""

    def forward(self, x, last=False, freeze=False):
        if float(x.max()) > 50:
            self.body.weight.data.clamp_(max=0.01)
        return super().forward(x, last, freeze)


def test_a_forward_pass_of_the_loop_in_which_weights_change_is_refused():
    train = data_of(400, 0)
    train.store.x[7] = 100.0
    loader = loader_of("FullDP", train=train, batch_size=400)
    model, optimizer = private(loader, Capped())
    with pytest.raises(UnsupportedModelError, match="changes its own weights"):
        one_step(model, optimizer, next(iter(loader)))


class MixesOutsideOfTraining(Net):
    def forward(self, x, last=False, freeze=False):
        out = super().forward(x, last, freeze)
        return out if self.training or last else out - out.mean(dim=0)


class ChangesOutsideOfTraining(Net):
    def forward(self, x, last=False, freeze=False):
        if not self.training and len(x) > 50:
            self.head.weight.data.mul_(0.9)
        return super().forward(x, last, freeze)


def test_a_model_that_mixes_records_outside_of_training_is_refused_where_records_are_selected():
    private(loader_of("RandomDP"), MixesOutsideOfTraining())
    with pytest.raises(UnsupportedModelError, match="outside of training"):
        private(loader_of("GLISTERDP"), MixesOutsideOfTraining())


def test_a_selection_in_which_weights_change_stops():
    """A record would change what the records after it look like, and with them more than its own part of a table."""
    loader = loader_of("GLISTERDP")
    private(loader, ChangesOutsideOfTraining())
    with pytest.raises(UnsupportedModelError, match="changes its own weights"):
        next(iter(loader))


def test_without_make_private_there_are_no_batches_and_twice_is_refused():
    loader = loader_of()
    with pytest.raises(MechanismError, match="make_private"):
        next(iter(loader))
    private(loader)
    with pytest.raises(MechanismError, match="one private run"):
        private(loader)


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr("cords_dp.training.loop.current_world", lambda: World(0, 2))
    with pytest.raises(MechanismError, match="one process"):
        private(loader_of())


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (dict(args=args_of(num_epochs=None)), "num_epochs"),
        (dict(args=args_of(num_classes=None)), "num_classes"),
        (dict(args=args_of(loss=nn.CrossEntropyLoss())), "dss_args.loss"),
        (dict(args=args_of(fraktion=0.1)), "fraktion"),
        (dict(ema_decay=0.9), "ema_decay"),
        (dict(epsilon=-1.0), "privacy.epsilon"),
        (dict(batch_size=0), "batch_size"),
    ],
)
def test_mistakes_are_found_when_the_loader_is_made(arguments, key):
    with pytest.raises(ConfigError, match=key):
        loader_of(**arguments)


def test_glister_needs_a_validation_loader_and_the_others_do_not():
    train = DataLoader(data_of(100, 0))
    with pytest.raises(ConfigError, match="valloader"):
        cords_dp.GLISTERDPDataLoader(train, args_of(), None, batch_size=20, privacy=QUICK)
    assert len(cords_dp.RandomDPDataLoader(train, args_of(), None, batch_size=10, privacy=QUICK)) == 5


def test_an_account_counts_the_loop_before_its_first_batch(tmp_path):
    account = Account.open(tmp_path / "a.account", 4.0, 1e-5)
    loader_of(account=str(account.path))
    assert account.share() > 0.5
    with pytest.raises(BudgetExceededError):
        loader_of(account=str(account.path))
