#!/usr/bin/env python3
"""The checker finds what it is for: each rule has a history that keeps it, and one doctored so that it breaks this rule."""

from __future__ import annotations

import copy
import os
import struct
import sys
import tempfile
import unittest
from typing import Any, Dict, List

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import history
import history_check
import history_sinks

JOB = "run/1/regular/s"
OTHER = "run/2/regular/s"

# One job that one worker lost to another and a second one that is dead.
LINES = """
1 trainer 1 invoke submit run/1/regular/s - -
2 trace 1 ok state run/1/regular/s - submit=queued
3 trainer 1 ok submit run/1/regular/s - queued
4 trainer 2 invoke submit run/2/regular/s - -
5 trace 2 ok state run/2/regular/s - submit=queued
6 trainer 2 ok submit run/2/regular/s - queued
10 trace 3 ok state run/1/regular/s 1.aa claim=running
11 w1 1 ok claim run/1/regular/s 1.aa 1
12 w1 2 invoke publish run/1/regular/s 1.aa t=77
20 trace 4 ok state run/1/regular/s - heartbeat=queued
21 trace 5 ok state run/1/regular/s 2.bb claim=running
22 w2 1 ok claim run/1/regular/s 2.bb 2
23 w2 2 invoke publish run/1/regular/s 2.bb t=78
24 trace 6 ok result run/1/regular/s 2.bb t
25 w2 2 ok publish run/1/regular/s 2.bb t=ok
26 w1 2 fail publish run/1/regular/s 1.aa t=stale
27 w2 3 invoke complete run/1/regular/s 2.bb -
28 trace 7 ok state run/1/regular/s 2.bb complete=done
29 w2 3 ok complete run/1/regular/s 2.bb done
30 look 1 ok look run/1/regular/s - done
31 trace 8 ok state run/2/regular/s 3.cc claim=running
32 w1 4 ok claim run/2/regular/s 3.cc 1
33 w1 5 invoke fail run/2/regular/s 3.cc fatal
34 trace 9 ok state run/2/regular/s 3.cc fail=dead
35 w1 5 ok fail run/2/regular/s 3.cc dead
36 look 2 ok look run/1/regular/s - done
"""
# A job that was split; a shard of it is dead, and with it the job; somebody retries it, and cancels it at last.
SPLIT = "run/3/regular/s"
SPLIT_LINES = """\
40 trace 10 ok state run/3/regular/s - submit=queued
41 trace 11 ok state run/3/regular/s 4.dd claim=running
42 trace 12 ok state run/3/regular/s@0 - split=queued
42 trace 12 ok state run/3/regular/s - split=running
43 trace 13 ok state run/3/regular/s@0 5.ee claim=running
44 trace 14 ok state run/3/regular/s@0 5.ee fail=dead
44 trace 14 ok state run/3/regular/s - fail=dead
45 operator 1 invoke retry run/3/regular/s - -
46 trace 15 ok state run/3/regular/s - retry=queued
47 operator 1 ok retry run/3/regular/s - ok
48 trace 16 ok state run/3/regular/s 6.ff claim=running
49 trace 17 ok state run/3/regular/s@0 - split=queued
49 trace 17 ok state run/3/regular/s - split=running
50 trace 18 ok state run/3/regular/s - cancel=cancelled
"""
LEFT = {
    "jobs": {JOB: {"state": "done", "reason": "", "attempts": "2", "token": ""},
             OTHER: {"state": "dead", "reason": "broken", "attempts": "1", "token": ""}},
    "results": [{"job": JOB, "task": "t", "run": "run", "step": "1", "state": "done", "metric:mark": "78"},
                {"job": JOB, "task": "", "run": "run", "step": "1", "state": "done"},
                {"job": OTHER, "task": "", "run": "run", "step": "2", "state": "dead"}],
    "audit": [], "losses": 0,
    "sinks": {"jsonl": [JOB + "#t", JOB + "#=done.2", OTHER + "#=dead.1"],
              "tensorboard": [["run", "eval/t/mark", 1], ["run", "evalq/seconds", 1]]},
}


def lines_of(text: str) -> List[history.Line]:
    with tempfile.NamedTemporaryFile("w", suffix=".history") as file:
        file.write(text.lstrip())
        file.flush()
        return history.read([file.name])


def problems(text: str, left: Dict[str, Any]) -> List[str]:
    return history_check.check(lines_of(text), left).problems


class Doctored(unittest.TestCase):
    def broken(self, rule: str, text: str = LINES, left: Any = None) -> None:
        found = problems(text, LEFT if left is None else left)
        self.assertTrue(found, "nothing was found")
        self.assertEqual({rule}, {one.split(":")[0] for one in found}, found)

    def left(self) -> Dict[str, Any]:
        return copy.deepcopy(LEFT)

    def test_good_history_keeps_every_rule(self) -> None:
        report = history_check.check(lines_of(LINES), LEFT)
        self.assertEqual([], report.problems)
        self.assertEqual((1, 2, 8), tuple(report.counts[name] for name in ("stale_refused", "submitted", "transitions")))

    def test_lost_submit(self) -> None:
        self.broken("ended", LINES + "40 trainer 9 ok submit run/3/regular/s - queued\n")

    def test_submit_accepted_by_the_ring_alone(self) -> None:
        self.broken("ended", LINES + "40 trainer 9 ok accept run/3/regular/s - -\n")

    def test_job_that_never_ended(self) -> None:
        left = self.left()
        left["jobs"]["run/3/regular/s"] = {"state": "queued", "reason": "", "attempts": "0", "token": ""}
        self.broken("ended", left=left)

    def test_end_without_a_reason(self) -> None:
        left = self.left()
        left["jobs"][OTHER]["reason"] = ""
        self.broken("ended", left=left)

    def test_result_published_twice(self) -> None:
        left = self.left()
        left["results"].insert(1, dict(left["results"][0]))
        self.broken("published", left=left)

    def test_end_published_twice(self) -> None:
        left = self.left()
        left["results"].append(dict(left["results"][-1]))
        self.broken("published", left=left)

    def test_done_without_a_result(self) -> None:
        left = self.left()
        del left["results"][0]
        left["sinks"] = {}
        self.broken("published", left=left)

    def test_end_that_was_not_published(self) -> None:
        left = self.left()
        del left["results"][-1]
        left["sinks"] = {}
        self.broken("published", left=left)

    def test_sink_lacks_a_result(self) -> None:
        for sink in ("jsonl", "tensorboard"):
            left = self.left()
            del left["sinks"][sink][0]
            self.broken("recorded", left=left)

    def test_sink_holds_a_result_twice(self) -> None:
        for sink in ("jsonl", "tensorboard"):
            left = self.left()
            left["sinks"][sink].append(left["sinks"][sink][0])
            self.broken("recorded", left=left)

    def test_sink_holds_what_nobody_published(self) -> None:
        left = self.left()
        left["sinks"]["jsonl"].append("run/9/regular/s#t")
        self.broken("recorded", left=left)

    def test_stale_write_that_was_accepted(self) -> None:
        self.broken("stale", LINES + "40 w1 7 invoke complete run/1/regular/s 1.aa -\n41 w1 7 ok complete run/1/regular/s 1.aa done\n")
        self.broken("stale", LINES + "40 w1 7 invoke publish run/1/regular/s 1.aa t=77\n41 w1 7 ok publish run/1/regular/s 1.aa t=ok\n")

    def test_repetition_of_a_last_word_is_no_stale_write(self) -> None:
        text = LINES.replace("20 trace 4 ok state run/1/regular/s - heartbeat=queued",
                             "13 w1 3 invoke release run/1/regular/s 1.aa -\n20 trace 4 ok state run/1/regular/s 1.aa release=queued")
        again = "40 w1 7 invoke release run/1/regular/s 1.aa -\n41 w1 7 ok release run/1/regular/s 1.aa queued\n"
        self.assertEqual([], problems(text + again, LEFT))
        self.broken("stale", LINES + again)

    def test_stale_write_that_nobody_heard_accepted(self) -> None:
        self.broken("stale", LINES.replace("24 trace 6 ok result run/1/regular/s 2.bb t", "24 trace 6 ok result run/1/regular/s 1.aa t"))
        self.broken("stale", LINES.replace("2.bb complete=done", "1.aa complete=done"))

    def test_token_given_twice(self) -> None:
        text = LINES.replace("3.cc", "2.bb")
        self.broken("tokens", text)

    def test_token_that_does_not_rise(self) -> None:
        text = LINES.replace("10 trace 3 ok state run/1/regular/s 1.aa", "10 trace 3 ok state run/1/regular/s 5.aa")
        self.broken("tokens", text)

    def test_state_that_leaves_its_end(self) -> None:
        left = self.left()
        left["jobs"][JOB]["state"] = "queued"
        found = problems(LINES + "40 trace 12 ok state run/1/regular/s - heartbeat=queued\n", left)
        self.assertTrue(any(one.startswith("arrows: ") and "from 'done' to 'queued'" in one for one in found), found)

    def test_state_that_leaves_its_end_while_nobody_traces(self) -> None:
        text = LINES + "39 trace 12 unknown gap - - -\n40 trace 12 ok state run/1/regular/s 1.aa claim=running\n41 trace 13 ok state run/1/regular/s - x=done\n"
        found = problems(text, LEFT)
        self.assertTrue(any(one.startswith("arrows: ") for one in found), found)

    def test_arrow_by_the_wrong_function(self) -> None:
        self.broken("arrows", LINES.replace("heartbeat=queued", "best_put=queued"))

    def test_shards_go_with_their_job_and_a_retry_makes_new_ones(self) -> None:
        left = self.left()
        left["jobs"][SPLIT] = {"state": "cancelled", "reason": "not wanted", "attempts": "1", "token": ""}
        left["results"] += [{"job": SPLIT, "task": "", "run": "run", "step": "3", "state": state} for state in ("dead", "cancelled")]
        left["sinks"]["jsonl"] += [SPLIT + "#=dead.1", SPLIT + "#=cancelled.1"]
        self.assertEqual([], problems(LINES + SPLIT_LINES, left))
        unended = "".join(line + "\n" for line in SPLIT_LINES.splitlines() if " fail=dead" not in line or "@" in line)
        found = problems(LINES + unended, left)
        self.assertTrue(any(one.startswith(f"arrows: {SPLIT}@0 went from 'dead' to 'queued' by split") for one in found), found)

    def test_end_that_somebody_saw_change(self) -> None:
        self.broken("arrows", LINES.replace("36 look 2 ok look run/1/regular/s - done", "36 look 2 ok look run/1/regular/s - dead"))

    def test_state_other_than_last_seen(self) -> None:
        self.broken("arrows", LINES.replace("34 trace 9 ok state run/2/regular/s 3.cc fail=dead", "34 trace 9 ok state run/2/regular/s 3.cc fail=delayed"))

    def test_gap_of_the_trace_is_forgiven(self) -> None:
        text = LINES.replace("21 trace 5 ok state run/1/regular/s 2.bb claim=running",
                             "19 trace 4 unknown gap - - -\n21 trace 5 ok state run/1/regular/s 2.bb claim=running")
        self.assertEqual([], problems(text.replace("20 trace 4 ok state run/1/regular/s - heartbeat=queued\n", ""), LEFT))

    def test_claim_in_a_gap_is_no_stale_write(self) -> None:
        text = LINES.replace("21 trace 5 ok state run/1/regular/s 2.bb claim=running", "21 trace 5 unknown gap - - -")
        self.assertEqual([], problems(text, LEFT))

    def test_what_a_sweep_does_beside_a_stale_completion_is_its_own(self) -> None:
        text = LINES.replace("20 trace 4 ok state run/1/regular/s - heartbeat=queued", "20 trace 4 ok state run/1/regular/s 0.cc complete_claim=queued")
        self.assertEqual([], problems(text, LEFT))

    def test_result_that_nobody_evaluated(self) -> None:
        left = self.left()
        left["results"][0]["metric:mark"] = "79"
        self.broken("evaluated", left=left)

    def test_audit_and_losses(self) -> None:
        left = self.left()
        left["audit"] = ["run/1: in no place"]
        self.broken("audit", left=left)
        left = self.left()
        left["losses"] = 1
        self.broken("audit", left=left)


class Reading(unittest.TestCase):
    def test_torn_last_line_is_left_out(self) -> None:
        self.assertEqual(1, len(lines_of("1 a 1 ok submit x - -\n2 a 2 ok submit y - ")))

    def test_what_is_no_line_is_refused(self) -> None:
        self.assertRaises(ValueError, lines_of, "1 a 1 ok submit x - - more\n")

    def test_lines_are_joined_by_time(self) -> None:
        self.assertEqual(["x", "y"], [line.id for line in lines_of("2 a 1 ok submit y - -\n1 a 1 ok submit x - -\n")])

    def test_trace_joins_a_change_with_its_call(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "trace")
            tracer = history.Trace("main", history.Writer(path, "trace"))
            for line in (b'1.5 [0 unix:/r] "FCALL" "evalq_v1_claim" "1" "evalq:{main}:" "w" "q" "300" "1" "1" "1"',
                         b'1.5 [0 lua] "HSET" "evalq:{main}:job:r/1/regular/s" "state" "running" "token" "4.ab" "attempts" "1"',
                         b'1.6 [0 unix:/r] "FCALL" "evalq_v1_complete" "1" "evalq:{main}:" "r/1/regular/s" "4.ab" ""',
                         b'1.6 [0 lua] "HSET" "evalq:{main}:job:r/1/regular/s" "state" "done" "reason" "" "token" "" "last" "4.ab done"',
                         b'1.6 [0 unix:/r] "FCALL" "evalq_v1_cancel" "1" "evalq:{main}:" "r/3/regular/s" "not wanted"',
                         b'1.6 [0 lua] "HSET" "evalq:{main}:job:r/3/regular/s" "state" "cancelled" "reason" "not wanted"',
                         b'1.6 [0 unix:/r] "FCALL" "evalq_v1_publish" "1" "evalq:{main}:" "r/2/regular/s" "5.ab" "t" "x" "y" "z"',
                         b'1.6 [0 lua] "HSET" "evalq:{main}:job:r/2/regular/s" "suspect" "" "state" "running"',
                         b'1.7 [0 unix:/r] "FCALL" "evalq_v1_publish" "1" "evalq:{main}:" "r/2/regular/s" "5.ab" "t" "x" "y" "\\x81 \\"a"',
                         b'1.7 [0 lua] "HSETNX" "evalq:{main}:res:r/2/regular/s" "t" "\\x81 \\"state\\""'):
                tracer.take(line)
            tracer.writer.close()
            self.assertEqual([("state", "r/1/regular/s", "4.ab", "claim=running"), ("state", "r/1/regular/s", "4.ab", "complete=done"),
                              ("state", "r/3/regular/s", "-", "cancel=cancelled"), ("state", "r/2/regular/s", "5.ab", "publish.held=running"),
                              ("result", "r/2/regular/s", "5.ab", "t")],
                             [(line.op, line.id, line.token, line.detail) for line in history.read([path])])

    def points(self, *files: bytes) -> List[List[Any]]:
        with tempfile.TemporaryDirectory() as directory:
            os.mkdir(os.path.join(directory, "run"))
            for number, data in enumerate(files):
                with open(os.path.join(directory, "run", f"events.out.tfevents.{number}"), "wb") as file:
                    file.write(data)
            return history_sinks.tensorboard(directory)

    def record(self, step: int) -> bytes:
        value = b"\x0a\x01t\x15" + struct.pack("<f", 0.5)
        event = bytes([0x10, step]) + b"\x2a" + bytes([len(value) + 2]) + b"\x0a" + bytes([len(value)]) + value
        return struct.pack("<Q", len(event)) + b"\0" * 4 + event + b"\0" * 4

    def test_event_files_are_read_up_to_a_torn_record(self) -> None:
        self.assertEqual([["run", "t", 7]], self.points(self.record(7) + self.record(8)[:-1]))

    def test_late_point_takes_the_place_of_what_lies_after_it(self) -> None:
        first, second = self.record(3) + self.record(9), self.record(5) + self.record(9)
        self.assertEqual([["run", "t", 3], ["run", "t", 5], ["run", "t", 9]], self.points(first, second))
        self.assertEqual([["run", "t", 3], ["run", "t", 5]], self.points(first, self.record(5)))  # 9 was not written again.


if __name__ == "__main__":
    unittest.main()
