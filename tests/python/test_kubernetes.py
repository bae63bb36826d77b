"""Tests deploy/kubernetes without a cluster: every file is YAML without duplicate keys. If kubectl
exists, the base and each overlay are rendered, and each pod must have the role, secret and drain
time that it needs."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import unittest
from typing import Any, Dict, Iterator, List

import yaml
from scene import BIN, SOURCE
from test_compose import Strict

HERE = os.path.join(SOURCE, "deploy", "kubernetes")
OVERLAYS = ("base", "overlays/gpu", "overlays/keda", "overlays/jobs")
# If running jobs did not count, a busy worker would be scaled away.
QUERY = 'sum(evalq_jobs{queue="main",state=~"queued|running"})'


def pods(documents: List[Dict[str, Any]]) -> Iterator[Dict[str, Any]]:
    for document in documents:
        spec = document.get("spec", {})
        spec = spec.get("jobTargetRef", spec)
        if "template" in spec:
            yield spec["template"]["spec"]


class KubernetesTest(unittest.TestCase):
    def render(self, name: str) -> List[Dict[str, Any]]:
        done = subprocess.run(["kubectl", "kustomize", os.path.join(HERE, name)], text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return list(yaml.load_all(done.stdout, Strict))  # noqa: S506

    def test_every_file_is_yaml_and_named_by_a_kustomization(self) -> None:
        named = {"kustomization.yaml"}
        files = glob.glob(HERE + "/**/*.yaml", recursive=True)
        for path in files:
            with open(path, encoding="utf-8") as file:
                for document in yaml.load_all(file, Strict):  # noqa: S506
                    if document.get("kind") == "Kustomization":
                        named.update(document["resources"], document.get("configurations", []))
        self.assertEqual({os.path.basename(path) for path in files} - named, {"evalq.yaml"})

    def test_its_configuration_is_read(self) -> None:
        words = [BIN + "/evalq", "--config", HERE + "/base/evalq.yaml", "--url", "unix:///nowhere/at.all", "status"]
        done = subprocess.run(words, text=True, capture_output=True, check=False)
        # The only error is that Redis cannot be reached.
        self.assertEqual(done.returncode, 5, done.stderr)

    @unittest.skipUnless(shutil.which("kubectl"), "NOT RUN: no kubectl")
    def test_pods_have_their_role_and_its_secret_alone(self) -> None:
        for name in OVERLAYS:
            documents = self.render(name)
            maps = {d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap"}
            roles = []
            for pod in pods(documents):
                container = pod["containers"][0]
                volumes = {volume["name"]: volume for volume in pod["volumes"]}
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertFalse(pod["automountServiceAccountToken"])
                keys = {item["key"] for item in volumes["secrets"]["secret"]["items"]}
                if container["name"] == "redis":
                    self.assertEqual(keys, {"users.acl"})
                    continue
                role = container["name"]
                roles.append(role)
                environment = {entry["name"]: entry["value"] for entry in container["env"]}
                self.assertEqual(environment["EVALQ_URL"], f"redis://{role}@redis:6379")
                self.assertEqual(environment["EVALQ_REDIS_PASSWORD_FILE"], "/secrets/" + role)
                self.assertEqual(keys, {role, "gateway.tokens"} if role == "gateway" else {role})
                self.assertIn(volumes["config"]["configMap"]["name"], maps, name)
                self.assertEqual(container["image"], "evalq:cuda" if role == "worker" and name.endswith("gpu") else "evalq:cpu")
                if role != "init":  # The program reads or compares checkpoints.
                    self.assertTrue(volumes["checkpoints"]["persistentVolumeClaim"]["readOnly"], role)
                    self.assertIn("/checkpoints", [mount["mountPath"] for mount in container["volumeMounts"]], role)
                if role == "worker":
                    # This is worker.drain_seconds of base/evalq.yaml.
                    self.assertGreater(pod["terminationGracePeriodSeconds"], 600)
                    self.assertEqual("nvidia.com/gpu" in container["resources"]["limits"], name.endswith("gpu"))
            self.assertEqual(sorted(roles), ["gateway", "init", "logger", "worker"], name)

    @unittest.skipUnless(shutil.which("kubectl"), "NOT RUN: no kubectl")
    def test_scaling_counts_what_runs_too(self) -> None:
        for name, kind in (("overlays/keda", "ScaledObject"), ("overlays/jobs", "ScaledJob")):
            documents = self.render(name)
            scaled = [document for document in documents if document["kind"] == kind]
            self.assertEqual([trigger["metadata"]["query"] for trigger in scaled[0]["spec"]["triggers"]], [QUERY])
            workers = [d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == "worker"]
            self.assertEqual(len(workers), 1 if kind == "ScaledObject" else 0)
            # Only KEDA has this kind.
            self.assertFalse([worker for worker in workers if "replicas" in worker["spec"]])


if __name__ == "__main__":
    unittest.main()
