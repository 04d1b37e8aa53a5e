"""Validates the objects in a file against the schemas of Kubernetes, of the oldest version that it is for and of the newest one known.

    schemas.py OBJECTS COMPOSE

There is no schema of compose files here: that one is parsed, and its volumes and services are looked up.
"""

import sys

import kubernetes_validate
import yaml

OLDEST = "1.28"

with open(sys.argv[1]) as file:
    objects = list(yaml.safe_load_all(file))
for version in (OLDEST, kubernetes_validate.latest_version()):
    for described in objects:
        kubernetes_validate.validate(described, version, strict=True)
        print(f"valid: {described['kind']} {described['metadata']['name']} {version}")

with open(sys.argv[2]) as file:
    compose = yaml.safe_load(file)
for name, service in compose["services"].items():
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert source.startswith("./") or source in compose["volumes"], f"{name}: no volume {source}"
    assert service["image"] == "lockkeeper", name
