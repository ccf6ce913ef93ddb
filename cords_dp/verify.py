"""Checks the claims of a run's folder, or of an account, alone: ``python verify.py RUN`` needs dp-accounting and numpy.

It shares nothing with the planner and the accountants. `Run` checks that every file is as it was written (files.json),
the journal's chain whole, that statement, plan, config, model and ledger belong together, charges lie within the plan,
ε of every data set follows from its events in both directions, and nothing unpaid is there. There is no key in it: who
forges all files alike is found only by a digest of files.json from another source. Not recomputed: what a selection
releases, by the plan; μ and the curve of attacks; what several records of one person cost.

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
Check = tuple[str, list[str], str]  # its name, what is wrong, and what it says if nothing is
PROFILES = {"poisson_gaussian", "gumbel_freeze", "branch_maximum"}
STEP, SLACK, PRESENT, ABSENT = 1e-4, 1e-6, "present", "absent"
ORDERS = [1.05, 1.1, 1.25, 1.5, 1.75, *np.arange(2, 6, 0.25), *np.arange(6, 12, 0.5), *range(12, 64), 80, 96, 128, 256]
UNLISTED = re.compile(r"(^|/)(private|wandb)/|(^|/)events\.out\.tfevents|^files\.json$")
READ, KNOWN = {".csv", ".json", ".jsonl", ".log", ".txt"}, {".md", ".html", ".yaml", ".pt", ".lock", ".png", ".svg"}
EXACT = {"D": ("(sub)?trn", "Training|Subset"), "V": ("val", "Validation"), "T": ("tst", "Test")}  # metrics of a set
_key = partial(json.dumps, sort_keys=True)


def epsilon_of(parts: list[Fields], inclusion: float = 1.0) -> float:
    """Bound ε of a data set. ``inclusion``: the chance of a record to be in a subset that is never released."""
    total = 0.0
    for part in parts:
        events, delta = _events(part["events"]), part["delta"] / inclusion
        if set(re.findall(r'"kind": "(\w+)"', _key(events))) <= PROFILES:
            inside = max(_composed(events, way).get_epsilon_for_delta(delta) for way in (PRESENT, ABSENT))
        else:
            inside = float(rdp.compute_epsilon(ORDERS, [_renyi(events, order) for order in ORDERS], delta)[0])
        total += inside if inclusion == 1 else math.log1p(inclusion * math.expm1(inside))
    return total


def _jointly(data: Fields) -> float:
    events = [event for part in data["parts"] for event in part["events"]]
    return epsilon_of([{"events": events, "delta": sum(p["delta"] for p in data["parts"])}], data["inclusion"])


def _events(entries: list[Fields]) -> list[Fields]:
    """Return the events of these entries, but for numbers that no event has."""
    if odd := re.search(r': (-|NaN|Inf|true|false|null)|"count": (0|\d*[^\d,}])', _key(entries)):
        raise ValueError(f"an event was changed: it has a number that no event has, {odd[0]!r} …")
    return [entry["event"] for entry in entries]


def _composed(events: list[Fields], direction: str) -> pld_pmf.PLDPmf:
    return reduce(pld_pmf.compose_pmfs, [_loss(e, direction).self_compose(e["count"]) for e in events])


def _loss(event: Fields, direction: str) -> pld_pmf.PLDPmf:
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
    counts: Counter[tuple[str, str]] = Counter()
    for entry, event in zip(entries, _events(entries), strict=True):
        counts[entry["dataset"], _key({**event, "count": 1})] += event["count"]
    return counts


def _use(name: str, sigma: float, rate: float, count: int) -> Fields:
    return {"dataset": name, "event": {"kind": "poisson_gaussian", "sigma": sigma, "rate": rate, "count": count}}


class Run:
    """The folder of a run. Each check returns what is wrong, in words."""

    def __init__(self, folder: Path):
        self.folder, self.report = folder, _json(folder / "privacy.json")
        if not self.report.get("events"):
            raise ValueError("privacy.json lists no events: the run has no privacy, is a tuning, or of an old version")
        self.sets, self.ledger = self.report["events"]["datasets"], self.report["ledger"]
        self.plan, self.privacy = self.report["plan"], self.report["plan"]["privacy"]
        journals = [read_journal(path) for path in sorted(folder.rglob("ledger.jsonl"))]
        mine = [journal for journal in journals if journal[0][0].get("id") == self.ledger["id"]]
        self.journal, self.head = mine[0] if len(mine) == 1 else ([{}], "")
        self.charges = [record["charge"] for record in self.journal if "charge" in record]
        self.epsilon = {d["dataset"]: epsilon_of(d["parts"], d["inclusion"]) for d in self.sets}
        names = [name for name in ("privacy.html", "README.md") if (folder / name).exists()]
        self.texts = {name: (folder / name).read_text(errors="replace") for name in ("privacy.md", *names)}

    def checks(self) -> list[Check]:
        found = ", ".join(f"{d['dataset']} = {self.epsilon[d['dataset']]:.4f} per {d['unit']}" for d in self.sets)
        cut = ["ledger.jsonl is missing, is there twice, lacks entries, or went on later"]
        beside = "; another run's ledger is here, not counted" * (len([*self.folder.rglob("ledger*.jsonl")]) > 1)
        return [
            ("files", self.changed(), "every file is as it was written"),
            ("journal", cut * (self.head != self.ledger["head"]), f"{len(self.journal)} records, chain whole{beside}"),
            ("belong together", self.foreign(), "statement, plan, config, model and ledger"),
            ("within the plan", self.beyond(), f"{len(self.charges)} charges, none of them unplanned"),
            ("epsilon", self.too_low(), f"{found}, at δ = {self.report['delta']:.3g}, both directions"),
            ("nothing unpaid", self.unpaid(), "no indices, no exact metrics of private records"),
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
        report, ledger, sizes = self.report, self.ledger, self.plan["sizes"]
        plan = hashlib.sha256(_key(self.plan).encode()).hexdigest()[:32]
        names = all(self.journal[0].get(key) == ledger[key] for key in ("id", "fingerprint", "binding"))
        words = {
            "privacy.json: the plan is not the one that its ledger is bound to": plan == ledger["fingerprint"],
            "ledger.jsonl belongs to another plan or to other data than privacy.json": names,
            "ledger.jsonl: other charges than privacy.json": _counts(self.charges) == _counts(ledger["entries"]),
        }
        for name, text in self.texts.items():
            words[f"{name} makes another statement than privacy.json"] = report["statement"] in text
        for what, about in ((name, report["about"].get(name) or {}) for name in ("model", "config")):
            same = bool(about) and _digest(self.folder / about["file"]) == about["sha256"]
            same &= what != "model" or about.get("sha256", "") in self.texts["privacy.md"]
            words[f"{about.get('file', what)} is not the {what} that privacy.json speaks of"] = same
        facts = [("δ", report["delta"], self.plan["delta"]), ("ε", report["epsilon_allowed"], self.privacy["epsilon"])]
        secret, size = self.plan["dss_args"]["secret_subset"], {"D": "n", "V": "n_validation", "T": "n_test"}
        for name, data in ((d["dataset"], d) for d in self.sets):
            facts += [("unit", data["unit"], "owner" if "records_per_owner" in self.privacy else "record")]
            facts += [("number of units", data["units"], sizes[size[name]])]
            facts += [("inclusion", data["inclusion"], sizes["k"] / sizes["n"] if secret and name == "D" else 1.0)]
        words |= {f"privacy.json: {what} is {x}, and {y} in its plan": x == y for what, x, y in facts}
        return [problem for problem, good in words.items() if not good]

    def beyond(self) -> list[str]:
        listed = _counts([{"dataset": d["dataset"], **e} for d in self.sets for p in d["parts"] for e in p["events"]])
        over, lacking = _counts(self.charges) - listed, _counts(self.planned()) - listed
        words = [f"ledger.jsonl: {n} uses beyond the plan, on {key[0]}: {key[1]}" for key, n in over.items()]
        return words + [f"privacy.json: {n} uses fewer than planned, on {k[0]}: {k[1]}" for k, n in lacking.items()]

    def planned(self) -> list[Fields]:  # all uses that follow from the schedule: but for those of selections
        plan, epochs = self.plan, [(chosen, rate, n * times) for (_, n, rate, _, chosen), times in self.plan["epochs"]]
        sides = [(x, pace) for x, pace in (("D", 1.0), ("V", plan.get("pace", 0.0))) if pace]  # who is in the steps
        uses = [_use(x, plan["sigma"], r * rate, n) for chosen, rate, n in epochs if n and not chosen for x, r in sides]
        uses += [_use("D", plan["preparation"][2], 1.0, 1)] if plan["preparation"] else []
        keys = ("T sigma_test", "V sigma_temperature", "V sigma_head_start")  # once, or n times
        uses += [_use(key[0], plan[key[2:]], 1.0, plan.get(key[8:], 1)) for key in keys if key[2:] in plan]
        for x, r in sides if (n := sum(steps for chosen, _, steps in epochs if chosen)) else []:
            branches = [[_use(x, sigma, r * rate, n)["event"]] for _, rate, sigma in plan["branches"]]
            uses += [{"dataset": x, "event": {"kind": "branch_maximum", "branches": branches, "count": 1}}]
        return uses

    def too_low(self) -> list[str]:
        report, most = self.report, max(self.epsilon.values())
        least = min([*self.epsilon.values(), *(_jointly(d) for d in self.sets if len(d["parts"]) > 1)])
        said = re.search(r"ε = ([\d.]+), δ = ([\d.e-]+)\)", report["statement"]) or ["", "0", "0"]
        claims = [("ε", report["epsilon"], most), ("ε in the sentence", float(said[1]), most)]
        claims += [("δ in the sentence", float(said[2]), report["delta"] * 0.995)]  # it has three digits
        claims += [(f"ε of {d['dataset']}", d["epsilon"], self.epsilon[d["dataset"]]) for d in self.sets]
        keys = {"D": "epsilon_training_data", "V": "epsilon_validation_data", "T": "epsilon_test_data"}
        claims += [(keys[n], report[keys[n]] or 0.0, e) for n, e in self.epsilon.items() if n in keys]
        claims += [(f"δ of {d['dataset']}", report["delta"], sum(p["delta"] for p in d["parts"])) for d in self.sets]
        for name, text in {**self.texts, "a text of privacy.json": json.dumps(report, ensure_ascii=False)}.items():
            pairs = re.findall(r"ε = ([\d.]+\d),?(?: at)? δ = ([\d.e-]*\d)", text)
            claims += [(f"ε in {name}", float(e), least) for e, delta in pairs if float(delta) <= report["delta"]]
        if (path := self.folder / "result.json").exists():
            claims += [("ε in result.json", _json(path).get("epsilon") or most, most)]
        return [f"privacy.json: {what} = {x:.10g}, found {y:.10g}" for what, x, y in claims if not x >= y * (1 - SLACK)]

    def unpaid(self) -> list[str]:
        shown = self.report["exact_metrics_of_private_records"] or self.privacy["exact_metrics"]
        seeded = not self.report["private"] or self.privacy["reproducible_noise"]
        words = ["privacy.json: the noise follows from the seed; nothing is private"] * seeded
        words += ["privacy.json: exact metrics of private records are shown, and nobody paid for them"] if shown else []
        private = [EXACT[d["dataset"]] for d in self.sets if d["dataset"] in EXACT]
        exact = "|".join(rf'(^|[,"])({short})_\w+(\W|$)|({long}) (Loss|Accuracy)' for short, long in private)
        indices, published = '"(indices|idxs|rows)" *:', self.plan["dss_args"]["publish_subset"]
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            name, text = path.relative_to(self.folder).as_posix(), path.read_text(errors="replace")
            if re.search("(^|/)private/", name) or not (UNLISTED.search(name) or path.suffix in READ | KNOWN):
                words.append(f"{name} has no place in a run: nobody looked into it")
            if UNLISTED.search(name) or path.suffix not in READ:
                continue
            if not published if path.name == "subset.json" else re.search(indices, text):
                words.append(f"{name} tells which records were used")
            words += [f"{name} has exact metrics of private records"] * bool(not shown and re.search(exact, text, re.M))
        return words


def check_account(path: Path) -> list[Check]:
    """Check an account: the chain, and that what all of its runs hold lies within its total."""
    (header, *records), _ = read_journal(path)
    held: dict[str, Fields] = {}
    words = [f"{path.name} adds up records and owners"] * (len({r.get("unit", "record") for r in records}) > 1)
    for record in records:  # what a run has charged it holds for good, and what cannot be given back
        last, charged = held.get(record["run"], {"entries": []}), record.get("charged", [])
        kept = _counts(charged) | _counts([] if record["refundable"] else last["entries"])
        if _counts(last.get("charged", [])) - _counts(charged) or kept - _counts(record["entries"]):
            words.append(f"{path.name} forgets what run {record['run']} has charged or holds for good")
        held[record["run"]] = record
    groups: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    for record in held.values():  # of runs with one split a record is in D or in V for good: it pays for one of them
        for entry, event in zip(record["entries"], _events(record["entries"]), strict=True):
            groups[record["split"] or f"run {record['run']}"][entry["dataset"]].append(event)
    events = [{"kind": "branch_maximum", "branches": [*sides.values()], "count": 1} for sides in groups.values()]
    epsilon, delta, log = header["epsilon"], header["delta"], math.log(1 / header["delta"])
    if header["adaptive"] and (len(held) != 1 or any(record["refundable"] for record in held.values())):
        # a Rényi filter: for one of K orders, fixed by (ε, δ), the sum is at most what implies (ε, δ/K)
        best = math.sqrt(log) / (math.sqrt(log + epsilon) - math.sqrt(log))
        orders = {max(2, round(1 + part * best)) for part in (0.5, 0.75, 1.0)}
        rooms = {a: epsilon - math.log1p(-1 / a) + math.log(delta / len(orders) * a) / (a - 1) for a in orders}
        share = min((_renyi(events, a) / room for a, room in rooms.items() if room > 0), default=math.inf)
    else:
        share = epsilon_of([{"delta": delta, "events": [{"event": e} for e in events]}] * bool(events)) / epsilon
    fine = f"{path.name}: {len(held)} runs hold {share:.2%} of ε = {epsilon:g}, δ = {delta:g}"
    words += [fine] * (not share <= 1 + SLACK or math.isinf(epsilon))
    return [("epsilon", words, f"{fine}; {len(records) + 1} records, chain whole")]


def verify(path: Path) -> Fields:
    """Check a run's folder or an account's file: a verdict in a sentence, and what each check found."""
    try:
        found = Run(path).checks() if path.is_dir() else check_account(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        words = str(error) if isinstance(error, (OSError, ValueError)) else f"a file has another format ({error!r})"
        found = [("files", [words], "")]
    checks: list[Fields] = [{"check": name, "ok": not wrong, "found": wrong or [fine]} for name, wrong, fine in found]
    bad = [problem for check in checks if not check["ok"] for problem in check["found"]]
    fine = next((check["found"][0] for check in checks if check["check"] == "epsilon"), "")
    verdict = f"NOT VERIFIED: {'; '.join(bad)}." if bad else f"VERIFIED, from the files alone: ε: {fine}."
    return {"what": str(path), "verified": not bad, "verdict": verdict, "checks": checks}


def main(argv: list[str] | None = None) -> int:
    """Print the verdict; return 0 if all is as claimed, else 1."""
    parser = argparse.ArgumentParser(description="Check the privacy claims of a run's folder, or of an account.")
    parser.add_argument("path", type=Path, help="the folder of a run, or the file of an account")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    result = verify((args := parser.parse_args(argv)).path)
    lines = [f"{'ok ' if c['ok'] else 'BAD'} {c['check']:<16}{words}" for c in result["checks"] for words in c["found"]]
    print(json.dumps(result, indent=2) if args.json else "\n".join([*lines, "", result["verdict"]]))
    return 0 if result["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
