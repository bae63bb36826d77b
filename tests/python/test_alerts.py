"""Tests deploy/grafana/alerts.yml with promtool of Prometheus: each alert fires for the metrics
that it must fire for, and not for others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import unittest

import yaml
from scene import SOURCE

CASES = os.path.join(SOURCE, "tests", "data", "alerts.yml")


class AlertsTest(unittest.TestCase):
    def test_alerts_fire_when_they_should(self) -> None:
        done = subprocess.run(["promtool", "test", "rules", CASES], text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_alert_has_a_case_in_which_it_fires(self) -> None:
        with open(os.path.join(SOURCE, "deploy", "grafana", "alerts.yml"), encoding="utf-8") as file:
            alerts = {rule["alert"] for group in yaml.safe_load(file)["groups"] for rule in group["rules"]}
        with open(CASES, encoding="utf-8") as file:
            asked = [one for case in yaml.safe_load(file)["tests"] for one in case["promql_expr_test"]]
        self.assertEqual({one["expr"].split('"')[1] for one in asked if one["exp_samples"]}, alerts)


if __name__ == "__main__":
    if shutil.which("promtool") is None:
        print("SKIPPED: promtool is not installed (apt: prometheus)")
        sys.exit(77)
    unittest.main()
