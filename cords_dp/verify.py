"""Checks the claims of a run's folder, or of an account, alone: ``python verify.py RUN`` needs dp-accounting and numpy.

It shares nothing with the planner and the accountants. `Run` checks that every file is as it was written (files.json),
the journal's chain whole, that statement, plan, config, model and ledger belong together, charges lie within the plan,
ε of every data set follows from its events in both directions, and nothing unpaid is there. There is no key in
it: who forges all files alike is found only by a digest of files.json from another source.

ε: the events of a part compose at the part's δ, and the ε of the parts of a data set add up. An event is a pair (P, Q)
for each direction of zero-out, known by its profile δ(ε) = sup_S P(S) − e^ε·Q(S):
  poisson_gaussian   P = (1−q)·N(0, σ²) + q·N(1, σ²) and Q = N(0, σ²) with the record present, swapped with it absent
  gumbel_freeze      one coordinate of Gumbel noise, moved by at most ε₀/2 either way
  branch_maximum     a released value chooses one of several lists of events: at every ε the largest of their profiles
  exponential_picks  bounded range: Rényi divergence min(α·ε₀²/8, ε₀); all events of its part then go by Rényi
Chords between points of a profile lie above it (Doroshenko et al. 2022): an upper bound. Claims may be 1e-6 of it less.
"""

import argparse
import hashlib
import json
import math
import re
import sys
from collections import Counter, defaultdict
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy.special import log_ndtr, ndtr  # dp-accounting brings scipy

Fields = dict[str, Any]
PROFILES = {"poisson_gaussian", "gumbel_freeze", "branch_maximum"}
STEP, SLACK, PRESENT, ABSENT = 1e-4, 1e-6, "present", "absent"
ORDERS = [1.05, 1.1, 1.25, 1.5, 1.75, *np.arange(2, 6, 0.25), *np.arange(6, 12, 0.5), *range(12, 64), 80, 96, 128, 256]
UNLISTED = re.compile(r"(^|/)(private|wandb)/|(^|/)events\.out\.tfevents|^files\.json$")
EXACT = {"D": ("(sub)?trn", "Training|Subset"), "V": ("val", "Validation"), "T": ("tst", "Test")}  # metrics of a set
_key = partial(json.dumps, sort_keys=True)


def epsilon_of(parts: list[Fields], inclusion: float = 1.0) -> float:
    """Bound ε of a data set. ``inclusion``: the chance of a record to be in a subset that is never released."""
    total = 0.0
    for part in parts:
        events, delta = [entry["event"] for entry in part["events"]], part["delta"] / inclusion
        if set(re.findall(r'"kind": "(\w+)"', _key(events))) <= PROFILES:
            inside = max(_composed(events, way).get_epsilon_for_delta(delta) for way in (PRESENT, ABSENT))
        else:
            inside = float(rdp.compute_epsilon(ORDERS, [_renyi(events, order) for order in ORDERS], delta)[0])
        total += inside if inclusion == 1 else math.log1p(inclusion * math.expm1(inside))
    return total


def _composed(events: list[Fields], direction: str) -> pld_pmf.PLDPmf:
    """Compose events in one direction."""
    return reduce(pld_pmf.compose_pmfs, [_loss(e, direction).self_compose(e["count"]) for e in events])


def _loss(event: Fields, direction: str) -> pld_pmf.PLDPmf:
    """Return the privacy loss of one use of an event."""
    if event["kind"] == "branch_maximum":
        branches = [_composed(branch, direction) for branch in event["branches"] if branch]
        reach = 4 * 2 ** sum(max(b.get_delta_for_epsilon(x) for b in branches) > 1e-14 for x in (4, 8, 16, 32))
        return _dots(-reach, reach, lambda e: np.max([b.get_delta_for_epsilon(e) for b in branches], axis=0))
    if event["kind"] == "gumbel_freeze":
        s = event["epsilon0"] / 2
        return _dots(-2 * s - STEP, 50 * math.expm1(s) + s, lambda e: _gumbel(e, s))
    sigma, rate = event["sigma"], event["rate"]
    ends = np.array([-10 * sigma, 1 + 10 * sigma])  # all outputs lie between, but for 1e-22; there the loss is:
    losses = np.logaddexp(math.log(max(1 - rate, 1e-300)), math.log(rate) + (2 * ends - 1) / (2 * sigma**2))
    low, high = sorted(losses if direction == PRESENT else -losses)
    return _dots(low, high, lambda e: _gaussian(e, sigma, rate, direction))


def _gaussian(epsilon: np.ndarray, sigma: float, rate: float, direction: str) -> np.ndarray:
    """Return δ(ε): the loss is monotone in the output x, and ε at x = ``cut``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (np.exp(epsilon if direction == PRESENT else -epsilon) - (1 - rate)) / rate
        cut = np.where(ratio > 0, sigma**2 * np.log(ratio) + 0.5, -np.inf)
    zero, one = -cut / sigma, (1 - cut) / sigma  # above the cut lie Φ(zero) of N(0, σ²) and Φ(one) of N(1, σ²)
    if direction == PRESENT:
        return (1 - rate) * ndtr(zero) + rate * ndtr(one) - np.exp(epsilon + log_ndtr(zero))
    mixture = np.logaddexp(math.log(max(1 - rate, 1e-300)) + log_ndtr(-zero), math.log(rate) + log_ndtr(-one))
    return ndtr(-zero) - np.exp(epsilon + mixture)


def _gumbel(epsilon: np.ndarray, s: float) -> np.ndarray:
    """Return δ(ε): the losses are s − (1−e^−s)·T after a move up and −s + (e^s−1)·T after one down, T ~ Exp(1)."""
    gap, reach, up, down = np.maximum(s - epsilon, 0), np.maximum(s + epsilon, 0), -math.expm1(-s), math.expm1(s)
    moved_up = -np.expm1(-gap / up) + np.exp(epsilon) * np.expm1(-gap / down)
    return np.maximum(moved_up, np.exp(-reach / down) - np.exp(epsilon - reach / up))


def _dots(low: float, high: float, profile: Any) -> pld_pmf.PLDPmf:
    """Return the loss, on multiples of `STEP`, whose profile joins points of the one given by chords."""
    first, last = math.floor(low / STEP), math.ceil(high / STEP)
    epsilon = np.arange(first, last + 1) * STEP
    deltas = np.minimum.accumulate(np.clip(profile(epsilon), np.maximum(0.0, -np.expm1(epsilon)), 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(STEP, first, last, deltas)


def _renyi(events: list[Fields], order: float) -> float:
    """Bound the Rényi divergence of all events together, in both directions."""
    total, a = 0.0, order - 1
    for event in events:
        kind, s = event["kind"], event.get("epsilon0", 0.0) / 2
        if kind == "poisson_gaussian":
            once = float(rdp._compute_rdp_poisson_subsampled_gaussian(event["rate"], event["sigma"], [order])[0])
        elif kind == "exponential_picks":
            once = min(order * s**2 / 2, 2 * s)
        elif kind == "gumbel_freeze":
            inside = 1 - a * math.expm1(s)
            down = -s - math.log(inside) / a if inside > 0 else math.inf
            once = max(s - math.log1p(-a * math.expm1(-s)) / a, down)
        elif kind == "branch_maximum":
            once = max(_renyi(branch, order) for branch in event["branches"])
        else:
            raise ValueError(f"events of kind {kind!r} are not known here, so their ε was not checked")
        total += event["count"] * once
    return total


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path.name} was changed: it is no JSON any more") from error


def read_journal(path: Path) -> tuple[list[Fields], str]:
    """Return the records and the last chain. A line's chain is SHA-256(chain of the line before + record)[:32]."""
    content = path.read_bytes()
    mark = re.match(rb'\{"committed":"(\d{16})",', content)
    if mark is None or len(content) < int(mark[1]):
        raise ValueError(f"{path.name} was changed: its first line is damaged, or its end was cut off")
    records, chain = [], ""
    for number, line in enumerate((b"{" + content[mark.end() :]).splitlines(keepends=True), start=1):
        match = re.fullmatch(rb'\{"chain":"([0-9a-f]{32})","record":(.*)\}\n', line)
        if match is None or hashlib.sha256(chain.encode() + match[2]).hexdigest()[:32] != match[1].decode():
            raise ValueError(f"{path.name} was changed: line {number} does not follow from the lines before it")
        chain = match[1].decode()
        records.append(json.loads(match[2]))
    return records, chain


def _counts(entries: list[Fields]) -> Counter[tuple[str, str]]:
    """Add up the uses of equal events of a data set."""
    counts: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        counts[entry["dataset"], _key({**entry["event"], "count": 1})] += entry["event"]["count"]
    return counts


class Run:
    """The folder of a run. Each check returns what is wrong, in words."""

    def __init__(self, folder: Path):
        self.folder, self.report = folder, _json(folder / "privacy.json")
        if not self.report.get("events"):
            raise ValueError("privacy.json lists no events: the run has no privacy, is a tuning, or of an old version")
        self.sets, self.ledger = self.report["events"]["datasets"], self.report["ledger"]
        journals = [read_journal(path) for path in sorted(folder.rglob("ledger.jsonl"))]
        mine = [journal for journal in journals if journal[0][0].get("id") == self.ledger["id"]]
        self.journal, self.head = mine[0] if mine else ([{}], "")
        self.charges = [record["charge"] for record in self.journal if "charge" in record]
        self.epsilon = {d["dataset"]: epsilon_of(d["parts"], d["inclusion"]) for d in self.sets}

    def checks(self) -> list[Fields]:
        found = ", ".join(f"{d['dataset']} = {self.epsilon[d['dataset']]:.4f} per {d['unit']}" for d in self.sets)
        cut = ["ledger.jsonl is missing, lacks entries, or went on later"] * (self.head != self.ledger["head"])
        return [
            _check("files", self.changed(), "every file is as it was written"),
            _check("journal", cut, f"{len(self.journal)} records, chain whole"),
            _check("belong together", self.foreign(), "statement, plan, config, model and ledger"),
            _check("within the plan", self.beyond(), f"{len(self.charges)} charges, none of them unplanned"),
            _check("epsilon", self.too_low(), f"{found}, at δ = {self.report['delta']:.3g}, both directions"),
            _check("nothing unpaid", self.unpaid(), "no indices, no exact metrics of private records"),
        ]

    def changed(self) -> list[str]:
        listed = _json(self.folder / "files.json")
        if (self.folder / "files.json").read_bytes() != (json.dumps(listed, indent=1) + "\n").encode():
            return ["files.json was changed"]
        files = (f for f in self.folder.rglob("*") if f.is_file() and (f.suffix != ".lock" or f.stat().st_size))
        names = {f.relative_to(self.folder).as_posix(): f for f in files}
        here, listed = {n: _digest(f) for n, f in names.items() if not UNLISTED.search(n)}, listed["sha256"]
        bad = sorted(n for n in {*here, *listed} if here.get(n) != listed.get(n))
        words = {(True, True): "changed", (False, True): "missing", (True, False): "new"}
        return [f"{n} is {words[n in here, n in listed]}, by files.json" for n in bad]

    def foreign(self) -> list[str]:
        plan = hashlib.sha256(_key(self.report["plan"]).encode()).hexdigest()[:32]
        names = all(self.journal[0].get(key) == self.ledger[key] for key in ("id", "fingerprint", "binding"))
        said = self.report["statement"].encode() in (self.folder / "privacy.md").read_bytes()
        words = [
            (plan == self.ledger["fingerprint"], "privacy.json: the plan is not the one that its ledger is bound to"),
            (names, "ledger.jsonl belongs to another plan or to other data than privacy.json"),
            (_counts(self.charges) == _counts(self.ledger["entries"]), "ledger.jsonl: other charges than privacy.json"),
            (said, "privacy.md makes another statement than privacy.json"),
        ]
        for what, about in ((name, self.report["about"].get(name) or {}) for name in ("model", "config")):
            same = bool(about) and _digest(self.folder / about["file"]) == about["sha256"]
            words.append((same, f"{about.get('file', what)} is not the {what} that privacy.json speaks of"))
        return [problem for good, problem in words if not good]

    def beyond(self) -> list[str]:
        planned = _counts([{"dataset": d["dataset"], **e} for d in self.sets for p in d["parts"] for e in p["events"]])
        over = _counts(self.charges) - planned
        return [f"ledger.jsonl: {n} uses beyond the plan, on {key[0]}: {key[1]}" for key, n in over.items()]

    def too_low(self) -> list[str]:
        report, most = self.report, max(self.epsilon.values())
        said = re.search(r"ε = ([\d.]+), δ = [\d.e-]+\)", report["statement"])
        claims = [("ε", report["epsilon"], most), ("ε in the sentence", float(said[1]) if said else 0.0, most)]
        claims += [(f"ε of {d['dataset']}", d["epsilon"], self.epsilon[d["dataset"]]) for d in self.sets]
        keys = {"D": "epsilon_training_data", "V": "epsilon_validation_data", "T": "epsilon_test_data"}
        claims += [(keys[n], report[keys[n]] or 0.0, e) for n, e in self.epsilon.items() if n in keys]
        claims += [(f"δ of {d['dataset']}", report["delta"], sum(p["delta"] for p in d["parts"])) for d in self.sets]
        return [f"privacy.json: {what} = {x:.10g}, found {y:.10g}" for what, x, y in claims if x < y * (1 - SLACK)]

    def unpaid(self) -> list[str]:
        shown = self.report["exact_metrics_of_private_records"]
        words = [] if self.report["private"] else ["privacy.json: the noise follows from the seed; nothing is private"]
        words += ["privacy.json: exact metrics of private records are shown, and nobody paid for them"] if shown else []
        private = [EXACT[d["dataset"]] for d in self.sets if d["dataset"] in EXACT]
        exact = "|".join(rf'(^|[,"])({short})_\w+(\W|$)|({long}) (Loss|Accuracy)' for short, long in private)
        for path in sorted(path for path in self.folder.rglob("*.*") if path.is_file()):
            name, text = path.relative_to(self.folder).as_posix(), path.read_text(errors="replace")
            if UNLISTED.search(name) or path.suffix not in (".csv", ".json", ".jsonl", ".log", ".txt"):
                continue
            if (
                not self.report["published_subset"]
                if path.name == "subset.json"
                else re.search('"(indices|idxs|rows)" *:', text)
            ):
                words.append(f"{name} tells which records were used")
            if not shown and re.search(exact, text, re.MULTILINE):
                words.append(f"{name} has exact metrics of private records")
        return words


def check_account(path: Path) -> list[Fields]:
    """Check an account: the chain, and that what all of its runs hold lies within its total."""
    (header, *records), _ = read_journal(path)
    held = {record["run"]: record for record in records}
    groups: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    for record in held.values():  # of runs with one split a record is in D or in V for good: it pays for one of them
        for entry in record["entries"]:
            groups[record["split"] or f"run {record['run']}"][entry["dataset"]].append(entry["event"])
    events = [{"kind": "branch_maximum", "branches": [*sides.values()], "count": 1} for sides in groups.values()]
    epsilon, delta, log = header["epsilon"], header["delta"], math.log(1 / header["delta"])
    if header["adaptive"] and (len(held) != 1 or any(record["refundable"] for record in held.values())):
        # a Rényi filter: for one of K orders, fixed by (ε, δ), the sum is at most what implies (ε, δ/K)
        best = math.sqrt(log) / (math.sqrt(log + epsilon) - math.sqrt(log))
        orders = {max(2, round(1 + part * best)) for part in (0.5, 0.75, 1.0)}
        rooms = {a: epsilon - math.log1p(-1 / a) + math.log(delta / len(orders) * a) / (a - 1) for a in orders}
        share = min((_renyi(events, a) / room for a, room in rooms.items() if room > 0), default=math.inf)
    else:
        share = epsilon_of([{"delta": delta, "events": [{"event": event} for event in events]}]) / epsilon
    words = f"{path.name}: {len(held)} runs hold {share:.2%} of ε = {epsilon:g}, δ = {delta:g}"
    return [_check("epsilon", [words] * (share > 1 + SLACK), f"{words}; {len(records) + 1} records, chain whole")]


def _check(name: str, problems: list[str], fine: str) -> Fields:
    return {"check": name, "ok": not problems, "found": problems or [fine]}


def verify(path: Path) -> Fields:
    """Check a run's folder or an account's file: a verdict in a sentence, and what each check found."""
    try:
        checks = Run(path).checks() if path.is_dir() else check_account(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        words = str(error) if isinstance(error, (OSError, ValueError)) else f"a file has another format ({error!r})"
        checks = [_check("files", [words], "")]
    bad = [problem for check in checks if not check["ok"] for problem in check["found"]]
    fine = next((check["found"][0] for check in checks if check["check"] == "epsilon"), "")
    verdict = f"NOT VERIFIED: {'; '.join(bad)}." if bad else f"VERIFIED, from the files alone: ε: {fine}."
    return {"what": str(path), "verified": not bad, "verdict": verdict, "checks": checks}


def main(argv: list[str] | None = None) -> int:
    """Print the verdict; return 0 if all is as claimed, else 1."""
    parser = argparse.ArgumentParser(description="Check the privacy claims of a run's folder, or of an account.")
    parser.add_argument("path", type=Path, help="the folder of a run, or the file of an account")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    args = parser.parse_args(argv)
    result = verify(args.path)
    lines = [f"{'ok ' if c['ok'] else 'BAD'} {c['check']:<16}{words}" for c in result["checks"] for words in c["found"]]
    print(json.dumps(result, indent=2) if args.json else "\n".join([*lines, "", result["verdict"]]))
    return 0 if result["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
