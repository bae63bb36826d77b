"""Tests deploy/compose.yaml without a container engine: its names, roles, secrets and files agree
with each other, with the Dockerfile and with the programs. (`docker compose config` checks the
schema; this test checks the part of it that the file uses.)"""

from __future__ import annotations

import os
import re
import subprocess
import unittest
from typing import Any, Dict, List

import yaml
from scene import BIN, SOURCE

DEPLOY = os.path.join(SOURCE, "deploy")
KEYS = {
    "build", "cap_add", "cap_drop", "command", "depends_on", "deploy", "environment", "group_add", "healthcheck", "image", "init", "ports",
    "profiles", "read_only", "restart", "security_opt", "stop_grace_period", "stop_signal", "tmpfs", "user", "volumes",
}  # fmt: skip
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


class Strict(yaml.SafeLoader):
    """Loads YAML, and refuses duplicate keys, which compose accepts silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        if len(names) != len(set(names)):
            raise yaml.YAMLError(f"{node.start_mark}: a key stands twice among {names}")
        return super().construct_mapping(node, deep)


def source_of(volume: str) -> str:
    """Divides "SOURCE:TARGET[:ro]", with the default values of variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).split(":")[0]


class ComposeTest(unittest.TestCase):
    file: Dict[str, Any] = {}

    @classmethod
    def setUpClass(cls) -> None:
        with open(os.path.join(DEPLOY, "compose.yaml"), encoding="utf-8") as file:
            cls.file = yaml.load(file, Strict)  # noqa: S506 - a SafeLoader.
        cls.services: Dict[str, Dict[str, Any]] = cls.file["services"]

    def test_keys_are_compose_s_own(self) -> None:
        self.assertLessEqual({key for key in self.file if not key.startswith("x-")}, {"name", "services", "volumes"})
        for name, service in self.services.items():
            self.assertLessEqual(set(service), KEYS, name)

    def test_services_wait_for_services_that_are_there_and_say_what_they_wait_for(self) -> None:
        for name, service in self.services.items():
            for other, how in service.get("depends_on", {}).items():
                self.assertIn(how["condition"], CONDITIONS)
                waited = self.services[other]
                self.assertEqual("healthcheck" in waited, how["condition"] == "service_healthy" or other == "gateway", f"{name}: {other}")
                self.assertEqual(waited.get("restart") == "no", how["condition"] == "service_completed_successfully", f"{name}: {other}")
                self.assertLessEqual(set(waited.get("profiles", [])), set(service.get("profiles", [])), f"{name} needs {other}")

    def test_what_is_mounted_is_there(self) -> None:
        used = set()
        for name, service in self.services.items():
            for volume in service.get("volumes", []):
                source = source_of(volume)
                if "${" in volume and source.startswith("./"):
                    continue  # compose creates this directory for the user.
                if source.startswith("."):
                    self.assertTrue(os.path.exists(os.path.join(DEPLOY, source)), f"{name}: {volume}")
                else:
                    used.add(source)
        self.assertEqual(used, set(self.file["volumes"]))

    def test_what_programs_write_to_is_theirs(self) -> None:
        """The container engine creates directories that root owns, even if the user names them.
        secrets.sh gives them to the programs' user."""
        given = dict(reversed(volume.rsplit(":", 1)) for volume in self.services["secrets"]["volumes"])
        for name in ("worker", "worker-gpu", "logger"):
            for volume in self.services[name]["volumes"]:
                if not volume.endswith(":ro"):
                    source, target = volume.rsplit(":", 1)
                    self.assertEqual(given.get(target), source, name)

    def test_who_reads_or_compares_checkpoints_sees_them(self) -> None:
        for name in ("worker", "worker-gpu", "gateway", "logger"):
            self.assertIn("${EVALQ_CHECKPOINTS:-./checkpoints}:/checkpoints:ro", self.services[name]["volumes"], name)

    def test_the_gateway_reads_the_samples_that_the_logger_writes(self) -> None:
        self.assertIn("${EVALQ_RESULTS:-results}:/results", self.services["logger"]["volumes"])
        self.assertIn("${EVALQ_RESULTS:-results}:/results:ro", self.services["gateway"]["volumes"])
        with open(os.path.join(DEPLOY, "evalq.yaml"), encoding="utf-8") as file:
            samples = yaml.safe_load(file)["samples"]
        self.assertEqual(samples, {"directory": "/results/samples", "send": True})

    def test_each_program_has_its_own_role_and_its_secret_alone_by_file(self) -> None:
        words = [BIN + "/evalq", "--url", "unix:///nowhere/at.all", "admin", "acl"]
        done = subprocess.run(words, text=True, capture_output=True, check=True)
        roles = re.findall(r"^user (\w+)", done.stdout, re.M)
        for name, service in self.services.items():
            environment = service.get("environment", {})
            self.assertFalse([key for key in environment if key.endswith(("PASSWORD", "TOKEN", "SECRET"))], name)
            if "EVALQ_URL" in environment:
                role = re.fullmatch(r"redis://(\w+)@redis:6379", environment["EVALQ_URL"])
                assert role is not None, name
                self.assertEqual(role[1], name.split("-")[0])
                self.assertIn(role[1], roles)
                self.assertEqual(environment["EVALQ_REDIS_PASSWORD_FILE"], "/secrets/" + role[1])
                self.assertIn("secrets:/secrets:ro", service["volumes"])
                self.assertEqual(service["user"], "10001:10001")

    def test_redis_makes_no_snapshots(self) -> None:
        """A failed snapshot makes Redis reject every change, even if its append-only file is
        good."""
        with open(os.path.join(DEPLOY, "redis", "redis.conf"), encoding="utf-8") as file:
            self.assertEqual(re.findall(r"^save .*", file.read(), re.M), ['save ""'])
        with open(os.path.join(DEPLOY, "kubernetes", "base", "redis.yaml"), encoding="utf-8") as file:
            states = next(d for d in yaml.load_all(file, Strict) if d["kind"] == "StatefulSet")  # noqa: S506
        args = states["spec"]["template"]["spec"]["containers"][0]["args"]
        self.assertEqual(args[args.index("--save") + 1], "")

    def test_ports_are_of_this_machine_alone(self) -> None:
        for name, service in self.services.items():
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")
        # These services are scaled, so they have no fixed port.
        for name in ("worker", "worker-gpu"):
            self.assertNotIn("ports", self.services[name])

    def test_images_are_targets_of_the_dockerfile_or_named_by_version(self) -> None:
        with open(os.path.join(DEPLOY, "Dockerfile"), encoding="utf-8") as file:
            targets = re.findall(r"^FROM .* AS (\w+)$", file.read(), re.M)
        for name, service in self.services.items():
            if "build" in service:
                self.assertIn(service["build"]["target"], targets)
                self.assertEqual(service["image"], "evalq:" + service["build"]["target"])
            else:
                self.assertRegex(service["image"], r"^[a-z/]+:v?\d+\.\d+", name)

    def test_monitoring_is_asked_for_and_reads_with_a_token_of_its_own(self) -> None:
        profiled = {name for name in self.services if self.services[name].get("profiles") == ["monitoring"]}
        self.assertEqual(profiled, {"prometheus", "grafana"})
        with open(os.path.join(DEPLOY, "grafana", "prometheus.yml"), encoding="utf-8") as file:
            scrape = yaml.load(file, Strict)["scrape_configs"][0]  # noqa: S506
        listen = self.services["gateway"]["command"][2]
        self.assertEqual(scrape["static_configs"][0]["targets"], ["gateway:" + listen.split(":")[1]])
        self.assertEqual(scrape["authorization"]["credentials_file"], "/monitoring/metrics.token")
        for name in ("prometheus", "grafana"):
            volumes: List[str] = self.services[name]["volumes"]
            self.assertIn("monitoring:/monitoring:ro", volumes)
            self.assertFalse([volume for volume in volumes if volume.startswith("secrets:")], name)
            self.assertEqual(self.services[name]["group_add"], ["10001"])
        self.assertIn("/monitoring", self.services["secrets"]["command"])


if __name__ == "__main__":
    unittest.main()
