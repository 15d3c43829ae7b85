"""Every file under `deploy/`, checked by the tool that it is made for."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.compose_processes import read_compose
from deploy.tools import CHART, DEPLOY, call, output, program
from dystop.cli.app import app
from dystop.config import read_experiment

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SCRIPTS = [DEPLOY / "party.sh", DEPLOY / "slurm" / "testbed.sbatch"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts(script):
    output("sh" if script.suffix == ".sh" else "bash", "-n", script)
    assert output("shellcheck", script) == ""


def test_the_dockerfile():
    assert output("hadolint", DEPLOY / "Dockerfile") == ""
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=\S+:\d+\.\d+\.\d+-", text, re.M), "the base image is pinned"
    assert re.search(r"^USER 10001:10001$", text, re.M), "nothing runs as root"
    assert "--require-hashes" in text
    assert "--extra-index-url" not in text, "a second index may answer for any package"


def test_every_locked_requirement_has_a_hash():
    text = (DEPLOY / "requirements.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line
    locked = {re.split("==", line)[0] for line in lines}
    with (DEPLOY.parent / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["testbed"]
    assert {re.match(r"[\w-]+", word)[0].lower() for word in wanted} - locked == {"torch"}


def test_the_builder_sees_only_what_the_image_needs():
    """An allow list: keys, runs and the history of the repository never reach a layer."""
    lines = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    text = (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?:--chmod=\S+ )?(?!--from)(.*) \S+$", text, re.M)
    assert allowed == {word for line in copied for word in line.split()}


def test_the_compose_file():
    if call("docker", "compose", "version").returncode:
        pytest.skip("docker has no plugin compose (docker-compose)")
    file = DEPLOY / "compose.yaml"
    words = ["docker", "compose", "-f", file, "--profile", "check", "config", "--format", "json"]
    found = json.loads(output(*words))
    assert found["services"].keys() == read_compose()["services"].keys()
    for name, service in found["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
    experiment = read_experiment(Path(found["configs"]["experiment"]["file"]))
    workers = [s for s in found["services"].values() if s["command"] == ["worker"]]
    assert experiment.fleet.workers == len(workers)


def documents(*values):
    """Return the objects of the rendered chart, by kind and name."""
    import yaml

    text = output("helm", "template", "lab", CHART, *values)
    found = [document for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def test_the_chart_is_well_formed():
    assert "0 chart(s) failed" in output("helm", "lint", "--strict", CHART)


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["--set", "certificates.from=secret"],
        ["--set", "networkPolicy.enabled=false,workers=120"],
    ],
    ids=["tokens", "secret", "no-policy"],
)
def test_the_chart_gives_valid_objects(values):
    text = output("helm", "template", "lab", CHART, *values)
    said = output("kubernetes-validate", "--strict", "--no-warn", "-", given=text)
    assert said.count("passed") == text.count("\nkind: ")


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        ("workers=0", "workers"),
        ("workers=5,certificates.from=magic", "certificates.from"),
        ("colour=red", "colour"),
        ("observer.enabled=false", "observer = false"),
        (r"experiment=[fleet]\nworkers = 3", "leave [fleet] out"),
    ],
)
def test_the_chart_refuses_wrong_values(values, fact):
    values = values.replace(r"\n", "\n")
    done = call("helm", "template", "lab", CHART, "--set", values)
    assert done.returncode != 0
    assert fact in done.stdout


def test_ordinals_are_names_of_workers():
    found = documents("--set", "workers=101")
    pod = found["StatefulSet", "lab-worker"]["spec"]["template"]["spec"]
    (secret,) = (v["secret"] for v in pod["volumes"] if v["name"] == "secret")
    paths = [item["path"] for item in secret["items"]]
    assert paths[:2] == ["lab-worker-0/ca.crt", "lab-worker-0/w000.token"]
    assert paths[-1] == "lab-worker-100/w100.token"
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "secret")
    assert mount["subPathExpr"] == "$(POD_NAME)"  # a worker sees its own files only


def test_the_experiment_of_the_chart_is_valid(tmp_path):
    found = documents("--set", "workers=7")
    file = tmp_path / "experiment.toml"
    file.write_text(found["ConfigMap", "lab-experiment"]["data"]["experiment.toml"])
    assert read_experiment(file).fleet.workers == 7


def test_no_pod_is_privileged():
    for (kind, name), document in documents().items():
        if kind != "StatefulSet":
            continue
        pod = document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"], name
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert document["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "state"


@pytest.mark.parametrize("unit", UNITS, ids=lambda p: p.name)
def test_systemd_units(unit, tmp_path):
    """The units name the place where dystop is installed; here it is this program."""
    text = unit.read_text()
    assert "ExecStart=/opt/dystop/bin/dystop " in text
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/dystop/bin/dystop", sys.executable))
    assert output("systemd-analyze", "verify", "--man=no", copy) == ""
    output("systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", copy)


def commands():
    """Return the dystop commands of the systemd units, the probes and the health check."""
    for unit in UNITS:
        text = unit.read_text().replace("\\\n", " ")
        (command,) = re.findall(r"^ExecStart=\S+ (.*)$", text, re.M)
        yield pytest.param(command.split(), id=unit.name)
    script = (DEPLOY / "party.sh").read_text().replace("\\\n", " ")
    for number, command in enumerate(re.findall(r"(?:run|exec) dystop ([a-z].*)$", script, re.M)):
        yield pytest.param(command.split(), id=f"party.sh-{number}")


@pytest.mark.parametrize("words", list(commands()))
def test_commands_and_options_exist(words):
    depth = 2 if words[0] == "pki" else 1
    shown = CliRunner().invoke(app, [*words[:depth], "--help"])
    assert shown.exit_code == 0, words
    for option in (word for word in words if word.startswith("--")):
        assert f"{option} " in shown.output, (words, option)


def test_systemd_analyze_would_find_a_mistake(tmp_path):
    """The check above is worth something: a misspelt setting is reported."""
    program("systemd-analyze")
    copy = tmp_path / UNITS[0].name
    copy.write_text(UNITS[0].read_text().replace("NoNewPrivileges=", "NoNewPrivilege="))
    assert "NoNewPrivilege" in call("systemd-analyze", "verify", "--man=no", copy).stdout
