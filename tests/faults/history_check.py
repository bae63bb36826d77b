"""The rules that a history and what is left must keep. Each is a function that adds what breaks it to the report; each has
a doctored history in test_history.py that it finds.

ended       every submit that was acknowledged has ended: done, or dead, skipped, cancelled with a reason
published   each result and each end is in the stream once; a job that is done has both
recorded    each sink holds what the stream holds, once, and nothing else
stale       once a newer attempt was told of its claim, no older one writes anything that counts
tokens      a later claim of a job has a higher token; no token is given to two
arrows      the state machine never left its arrows, by Redis's own account; no end is left but by a retry
evaluated   each result is one that an evaluation of that very attempt gave
audit       evalq's own audit finds nothing, and no result was lost to trimming"""

from __future__ import annotations

import collections
from typing import Any, Dict, List, Optional, Set, Tuple

from history import STATES_ENDED, Line

SUBMITS = ("submit", "submit_batch", "accept")
WRITES = ("publish", "complete", "complete_many", "complete_claim", "fail", "release", "split")
CLAIMS = ("claim", "complete_claim")
SWEEPS = {"claim", "complete_claim", "heartbeat"}  # These do what time changes, beside their own work.
ENTERS = {"submit", "submit_batch", "put"}
COMPLETES = {"complete", "complete_many", "complete_claim"}
# What a holder says of a job whose lease had lapsed makes it run again, until another claim.
HOLDS = {verb + ".held" for verb in COMPLETES | {"heartbeat", "publish", "fail", "release", "split", "parts"}}

# (from, to): by which functions. A job whose lease lapsed is queued or delayed with its old token still good.
ARROWS = {
    ("", "queued"): ENTERS | {"split", "retry"}, ("", "delayed"): ENTERS, ("", "skipped"): ENTERS, ("", "running"): {"adopt"},
    ("queued", "queued"): ENTERS, ("delayed", "delayed"): ENTERS | {"fail"}, ("delayed", "queued"): ENTERS | SWEEPS | {"release"},
    ("queued", "delayed"): ENTERS | {"fail"},
    ("queued", "running"): {"claim", "complete_claim", "adopt"} | HOLDS, ("delayed", "running"): {"adopt"} | HOLDS,
    ("queued", "done"): COMPLETES, ("delayed", "done"): COMPLETES, ("running", "done"): COMPLETES,
    ("running", "queued"): SWEEPS | {"release", "complete", "complete_claim", "complete_many"},  # The last: parts are all in.
    ("running", "delayed"): SWEEPS | {"fail"}, ("running", "running"): {"split", "split.held", "adopt"},
    ("queued", "dead"): {"fail"} | SWEEPS, ("delayed", "dead"): {"fail"}, ("running", "dead"): {"fail"} | SWEEPS,
    ("queued", "skipped"): ENTERS | SWEEPS | {"cancel", "publish", "fail"},
    ("delayed", "skipped"): ENTERS | SWEEPS | {"cancel", "publish", "fail"},
    ("running", "skipped"): ENTERS | {"publish", "fail"},
    ("queued", "cancelled"): {"cancel", "ticket_cancel", "fail", "release"}, ("delayed", "cancelled"): {"cancel", "ticket_cancel", "fail"},
    ("running", "cancelled"): SWEEPS | {"cancel", "ticket_cancel", "fail", "release", "split"},
    ("dead", "queued"): {"retry"}, ("skipped", "queued"): {"retry"}, ("cancelled", "queued"): {"retry"},
}


class Report:
    def __init__(self) -> None:
        self.problems: List[str] = []
        self.counts: Dict[str, int] = collections.Counter()

    def broken(self, rule: str, what: str) -> None:
        self.problems.append(f"{rule}: {what}")


def counter(token: str) -> int:
    head = token.partition(".")[0]
    return int(head) if head.isdigit() else 0


def ended(lines: List[Line], left: Dict[str, Any], report: Report) -> None:
    acknowledged = {line.id for line in lines if line.op in SUBMITS and line.phase == "ok"}
    for id in sorted(acknowledged | set(left["jobs"])):
        job = left["jobs"].get(id)
        if job is None:
            report.broken("ended", f"{id} was acknowledged and is not there")
        elif job["state"] not in STATES_ENDED:
            report.broken("ended", f"{id} is {job['state']} at the end")
        elif job["state"] != "done" and job["reason"] == "":
            report.broken("ended", f"{id} is {job['state']} without a reason")
        else:
            report.counts["ended_" + job["state"]] += 1
    report.counts["submitted"] = len(acknowledged)


def published(lines: List[Line], left: Dict[str, Any], report: Report) -> None:
    # Also where the answer was lost: it may have been done.
    retried = collections.Counter(line.id for line in lines if line.op == "retry" and line.phase == "invoke")
    ends: Dict[str, List[str]] = collections.defaultdict(list)
    tasks: Dict[Tuple[str, str], int] = collections.Counter()
    for entry in left["results"]:
        if entry["task"] == "":
            ends[entry["job"]].append(entry["state"])
        else:
            tasks[(entry["job"], entry["task"])] += 1
    for (id, task), times in tasks.items():
        if times != 1:
            report.broken("published", f"{id}#{task} is in the stream {times} times")
    have = {id for id, _ in tasks}
    for id, job in left["jobs"].items():
        if "@" in id or job["state"] not in STATES_ENDED:
            continue
        if ends[id][-1:] != [job["state"]]:
            report.broken("published", f"{id} is {job['state']} and its ends in the stream are {ends[id]}")
        elif len(ends[id]) > 1 + retried[id]:
            report.broken("published", f"{id} has {len(ends[id])} ends and {retried[id]} retries")
        if job["state"] == "done" and id not in have:
            report.broken("published", f"{id} is done without a result")
    report.counts["published"] = len(tasks)


def recorded(lines: List[Line], left: Dict[str, Any], report: Report) -> None:
    if "jsonl" in left["sinks"]:
        wanted = collections.Counter(entry["job"] + "#" + entry["task"] for entry in left["results"])
        # An end's id has its state and attempt: JOB#=STATE.ATTEMPT.
        had = collections.Counter(id.partition("#=")[0] + "#" if "#=" in id else id for id in left["sinks"]["jsonl"])
        twice = [id for id, times in collections.Counter(left["sinks"]["jsonl"]).items() if times > 1]
        compare("jsonl", wanted, had, twice, report)
    if "tensorboard" in left["sinks"]:
        wanted = collections.Counter()
        for entry in left["results"]:
            for name in entry:
                if name.startswith("metric:") and entry["task"] != "":
                    wanted[(entry["run"], int(entry["step"]), entry["task"] + "/" + name[7:])] += 1
        had = collections.Counter()
        for run, tag, step in left["sinks"]["tensorboard"]:
            if not tag.startswith("evalq/"):
                had[(run.split("/")[0], step, tag.partition("/")[2])] += 1
        compare("tensorboard", wanted, had, [point for point, times in had.items() if times > 1], report)


def compare(sink: str, wanted: Any, had: Any, twice: List[Any], report: Report) -> None:
    for what in twice[:20]:
        report.broken("recorded", f"{sink} holds {what} more than once")
    for what in sorted(wanted.keys() - had.keys())[:20]:
        report.broken("recorded", f"{sink} lacks {what}")
    for what in sorted(had.keys() - wanted.keys())[:20]:
        report.broken("recorded", f"{sink} holds {what}, which nobody published")
    report.counts["recorded_" + sink] = len(had)


def claims_of(lines: List[Line]) -> Dict[str, List[Tuple[int, int, str]]]:
    """Of each job its claims as their claimers were told of them: (ns, counter, token), by time."""
    claims: Dict[str, List[Tuple[int, int, str]]] = collections.defaultdict(list)
    for line in lines:
        if line.op in CLAIMS and line.phase == "ok" and counter(line.token) > 0 and line.detail.isdigit():
            claims[line.id].append((line.ns, counter(line.token), line.token))
    return claims


def refused(line: Line) -> bool:
    """Whether it tells an attempt that another has its job."""
    return line.op in WRITES and line.phase == "fail" and line.detail.endswith("stale")


def stale(lines: List[Line], left: Dict[str, Any], report: Report) -> None:
    claims = claims_of(lines)
    invoked: Dict[Tuple[str, str, str], int] = {}
    first: Dict[Tuple[str, str, str], int] = {}  # When a write of an attempt was first asked for, by any call.
    for line in lines:
        if line.op not in WRITES:
            continue
        call = (line.process, line.call, line.id)
        if line.phase == "invoke":
            invoked[call] = line.ns
            first.setdefault((line.op, line.id, line.token), line.ns)
        elif refused(line):
            report.counts["stale_refused"] += 1
        elif line.phase == "ok":
            since = invoked.get(call, line.ns)
            if line.op in ("fail", "release", "split"):  # Its repetition is answered as it was.
                since = first.get((line.op, line.id, line.token), since)
            for ns, number, token in claims.get(line.id, []):
                if ns < since and number > counter(line.token) and not line.detail.endswith("duplicate"):
                    report.broken("stale", f"{line.op} of {line.id} by {line.token} was accepted after {token} was given")
                    break
    holder: Dict[str, str] = {}
    for line in lines:  # By Redis's own account: in its order.
        if line.process != "trace" or line.op not in ("state", "result", "gap"):
            continue
        verb, _, state = line.detail.partition("=")
        if line.op == "gap":
            holder.clear()
        elif line.op == "state" and verb in CLAIMS and state == "running":
            holder[line.id] = line.token
        elif line.op == "state" and verb not in {"fail", "release", "split"} and not (verb in COMPLETES and state == "done"):
            continue  # What a sweep did beside, or nothing that is fenced.
        elif line.token != "-" and line.id in holder and holder[line.id] != line.token:
            report.broken("stale", f"Redis took {line.detail} of {line.id} from {line.token}, held by {holder[line.id]}")


def tokens(lines: List[Line], left: Dict[str, Any], report: Report) -> None:
    given: Dict[str, Tuple[str, str]] = {}
    for id, claims in claims_of(lines).items():
        highest = 0
        for _, number, token in claims:
            if given.setdefault(token, (id, token))[0] != id:
                report.broken("tokens", f"{token} was given for {id} and for {given[token][0]}")
        report.counts["claims"] += len({token for _, _, token in claims})
        for _, number, token in claims:
            highest = max(highest, number)
        if left["jobs"].get(id, {}).get("state") == "running" and counter(left["jobs"][id]["token"]) < highest:
            report.broken("tokens", f"{id} is held by an older token than {highest}")
    order: Dict[str, int] = {}
    for line in lines:
        if line.process == "trace" and line.op == "state" and line.detail in ("claim=running", "complete_claim=running"):
            if counter(line.token) <= order.get(line.id, 0):
                report.broken("tokens", f"{line.id} was given {line.token} after {order[line.id]}")
            order[line.id] = counter(line.token)


def arrows(lines: List[Line], left: Dict[str, Any], report: Report) -> None:
    state: Dict[str, Optional[str]] = {}
    shards: Dict[str, Set[str]] = collections.defaultdict(set)  # Of each job that was split.
    unsure: Set[str] = set()
    retried = {line.id for line in lines if line.op == "retry" and line.phase == "invoke"}
    for line in lines:
        if line.process != "trace":
            continue
        if line.op == "gap":  # What happened meanwhile was not told.
            unsure = set(state)
            report.counts["trace_gaps"] += 1
        elif line.op == "state":
            verb, _, after = line.detail.partition("=")
            before = state.get(line.id, "" if report.counts["trace_gaps"] == 0 else None)
            state[line.id] = after
            report.counts["transitions"] += 1
            if before is None or (line.id in unsure and (before not in STATES_ENDED or before != "done" and line.id in retried)):
                unsure.discard(line.id)
            elif verb not in ARROWS.get((before, after), ()):
                report.broken("arrows", f"{line.id} went from '{before}' to '{after}' by {verb}")
            if "@" in line.id:
                shards[line.id.partition("@")[0]].add(line.id)
            elif after in STATES_ENDED:
                for shard in shards.pop(line.id, ()):  # They go with their job: a retry of it makes new ones.
                    state.pop(shard)
    for id, last in state.items():
        job = left["jobs"].get(id)
        if job is not None and id not in unsure and job["state"] != last:
            report.broken("arrows", f"{id} is {job['state']}, and Redis was last seen to make it {last}")
    seen: Dict[str, str] = {}
    for line in lines:  # What an observer saw: an end stays.
        if line.op == "look" and line.phase == "ok":
            before = seen.get(line.id, "")
            if before in STATES_ENDED and line.detail != before:
                report.broken("arrows", f"{line.id} was seen {before}, then {line.detail}")
            seen[line.id] = line.detail
            report.counts["looks"] += 1


def evaluated(lines: List[Line], left: Dict[str, Any], report: Report) -> None:
    """Evaluations write op "finish" (a program) or an invoke of publish (a worker in C) with detail TASK=MARK; the mark,
    new for each, is the metric "mark" of what they publish."""
    marks: Dict[Tuple[str, str], str] = {}
    for line in lines:
        if (line.op == "finish" and line.phase == "ok") or (line.op == "publish" and line.phase == "invoke"):
            task, _, mark = line.detail.partition("=")
            if mark != "":
                marks[(line.id + "#" + task, mark)] = line.token
        report.counts["evaluations"] += line.op == "finish" and line.phase == "ok"
    if not marks:
        return
    claims = claims_of(lines)
    for entry in left["results"]:
        if entry["task"] == "" or "metric:mark" not in entry:
            continue
        key = (entry["job"] + "#" + entry["task"], "%.0f" % float(entry["metric:mark"]))
        if key not in marks:
            report.broken("evaluated", f"{key[0]} has the mark {key[1]}, which no evaluation of it gave")
        elif counter(marks[key]) > 0 and claims.get(entry["job"]) and marks[key] not in {c[2] for c in claims[entry["job"]]}:
            report.broken("evaluated", f"{key[0]} was published by {marks[key]}, which was never given")


def audit(lines: List[Line], left: Dict[str, Any], report: Report) -> None:
    for problem in left["audit"]:
        report.broken("audit", problem)
    if left.get("losses"):
        report.broken("audit", f"{left['losses']} losses of results are recorded")


RULES = (ended, published, recorded, stale, tokens, arrows, evaluated, audit)


def check(lines: List[Line], left: Dict[str, Any]) -> Report:
    report = Report()
    report.counts["lines"] = len(lines)
    for rule in RULES:
        rule(lines, left, report)
    return report
