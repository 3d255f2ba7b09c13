"""The files that make a cluster: Ray takes them, and nothing in them is open, unpinned or secret."""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "cluster.yaml"
STACK = ROOT / "configs" / "deploy" / "aws-stack.yaml"
RAYJOB = ROOT / "configs" / "deploy" / "kuberay-rayjob.yaml"
FILES = (CLUSTER, STACK, RAYJOB)
SECRET = re.compile(r"AKIA[0-9A-Z]{16}|-----BEGIN|(?i:password|secret|token)[\"']?: *[\"']?(?!/)[0-9a-zA-Z+/]{16,}")

Tree = dict[str, Any]


def loaded(file: Path) -> Tree:
    tree: Tree = yaml.safe_load(file.read_text())
    return tree


def locked(package: str) -> str:
    """The version in requirements.lock."""
    found = re.search(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert found
    return found[1]


def texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield str(key)
            yield from texts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from texts(value)
    else:
        yield str(tree)


def faults_of_cluster(tree: Tree) -> list[str]:
    """What is wrong with a file for `ray up` on AWS."""
    found = [fault for node in tree["available_node_types"].values() for fault in node_faults(node)]
    image = tree["docker"]["image"]
    if not re.fullmatch(rf"rayproject/ray:{re.escape(locked('ray'))}-py311-(cpu|cu\d+)", image):
        found.append("image-not-pinned")
    if "--env RAY_AUTH_MODE=token" not in tree["docker"]["run_options"]:
        found.append("no-token")
    if not any(place.endswith(".ray/auth_token") for place in tree["file_mounts"]):
        found.append("no-token-mounted")
    commands = "\n".join([*tree["head_start_ray_commands"], *tree["initialization_commands"]])
    for part in ("--dashboard-host=127.0.0.1", "mlflow server --host 127.0.0.1", "--publish 127.0.0.1:5432"):
        if part not in commands:
            found.append(f"missing: {part}")
    kinds = [*tree["available_node_types"].values(), tree]  # a worker's own commands go before those of all
    if not all("mount" in "".join(kind.get("initialization_commands", ["mount"])) for kind in kinds):
        found.append("no-shared-folder")
    if "--require-hashes" not in "\n".join(tree["setup_commands"]):
        found.append("packages-not-locked")
    if any("0.0.0.0" in text or "::/0" in text for text in texts(tree)):
        found.append("open-to-the-world")
    if tree["available_node_types"][tree["head_node_type"]]["resources"] != {"CPU": 0, "GPU": 0}:
        found.append("head-trains")
    return found


def node_faults(node: Tree) -> Iterator[str]:
    config = node["node_config"]
    if not all(re.match(r"sg-[0-9a-f]+$", group) for group in config.get("SecurityGroupIds") or ["none"]):
        yield "no-security-group"  # Ray would make one that lets in SSH from everywhere
    if config.get("MetadataOptions", {}).get("HttpTokens") != "required":
        yield "metadata-without-token"
    if not config.get("IamInstanceProfile", {}).get("Name", "").startswith("paceline-"):
        yield "no-role"
    if not re.match(r"ami-[0-9a-f]+$", config.get("ImageId", "")):
        yield "no-machine-image"
    if "max_workers" not in node:
        yield "no-limit"
    if not all(disk["Ebs"].get("Encrypted") for disk in config.get("BlockDeviceMappings", [])):
        yield "disk-not-encrypted"


@pytest.mark.filterwarnings("ignore")
def test_ray_accepts_the_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(loaded(CLUSTER))
    validate_config(prepared)
    kinds = prepared["available_node_types"]
    assert {name for name, kind in kinds.items() if kind["resources"].get("GPU")} == {"gpu", "gpu_spot"}
    spot = kinds["gpu_spot"]["node_config"]
    assert spot.pop("InstanceMarketOptions") == {"MarketType": "spot"}
    assert spot == kinds["gpu"]["node_config"]


def test_the_cluster_is_closed_pinned_and_without_secrets() -> None:
    assert faults_of_cluster(loaded(CLUSTER)) == []


def test_the_stack_has_no_aliases_which_cloudformation_refuses() -> None:
    tokens = yaml.scan(STACK.read_text())
    assert not [token for token in tokens if isinstance(token, yaml.AnchorToken | yaml.AliasToken)]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda tree: node_of(tree, "cpu")["node_config"].pop("SecurityGroupIds"), "no-security-group"),
        (lambda tree: node_of(tree, "gpu")["node_config"].pop("MetadataOptions"), "metadata-without-token"),
        (lambda tree: node_of(tree, "head").update(resources={"CPU": 4}), "head-trains"),
        (lambda tree: node_of(tree, "gpu").pop("max_workers"), "no-limit"),
        (lambda tree: node_of(tree, "cpu").update(initialization_commands=[]), "no-shared-folder"),
        (lambda tree: tree["docker"].update(image="rayproject/ray:latest"), "image-not-pinned"),
        (lambda tree: tree["docker"]["run_options"].remove("--env RAY_AUTH_MODE=token"), "no-token"),
        (lambda tree: tree["file_mounts"].pop("~/.ray/auth_token"), "no-token-mounted"),
        (lambda tree: tree["head_start_ray_commands"].append("x --dashboard-host=0.0.0.0"), "open-to-the-world"),
        (lambda tree: tree.update(head_start_ray_commands=[]), "missing: mlflow server --host 127.0.0.1"),
    ],
)
def test_faults_are_seen(change: Callable[[Tree], Any], fault: str) -> None:
    tree = loaded(CLUSTER)
    change(tree)
    assert fault in faults_of_cluster(tree)


def node_of(tree: Tree, kind: str) -> Tree:
    """A kind of node, made independent of the others: they share objects."""
    nodes: Tree = tree["available_node_types"]
    nodes[kind] = deepcopy(nodes[kind])
    return nodes[kind]  # type: ignore[no-any-return]


def test_no_file_has_a_secret() -> None:
    assert [file.name for file in FILES if SECRET.search(file.read_text())] == []
    assert SECRET.search("password: 0123456789abcdef0123")
    assert SECRET.search("key: AKIA0123456789ABCDEF")


def test_the_stack_lets_in_one_address_and_gives_roles_one_folder() -> None:
    stack = loaded(STACK)
    kinds = stack["Resources"]
    rules = kinds["Nodes"]["Properties"]["SecurityGroupIngress"]
    assert rules == [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": {"Ref": "MyAddress"}}]
    pattern = re.compile(stack["Parameters"]["MyAddress"]["AllowedPattern"])
    assert pattern.fullmatch("203.0.113.7/32")
    assert not pattern.fullmatch("0.0.0.0/0")
    assert not pattern.fullmatch("0.0.0.0/32")
    group = {"Fn::GetAtt": ["Nodes", "GroupId"]}
    among = kinds["AmongTheNodes"]["Properties"]
    assert (among["GroupId"], among["SourceSecurityGroupId"]) == (group, group)
    statements = kinds["OneFolder"]["Properties"]["PolicyDocument"]["Statement"]
    assert statements[0]["Resource"] == {"Fn::Sub": "${Storage.Arn}/paceline/*"}
    assert kinds["FolderInTheNetwork"]["Properties"]["SecurityGroups"] == [group]
    assert kinds["Folder"]["Properties"]["Encrypted"] is True
    profiles = {each["Properties"].get("InstanceProfileName") for each in kinds.values() if "Properties" in each}
    nodes = loaded(CLUSTER)["available_node_types"].values()
    assert {node["node_config"]["IamInstanceProfile"]["Name"] for node in nodes} <= profiles
    assert set(stack["Outputs"]) == {"SecurityGroup", "Bucket", "FileSystem"}


def test_the_rayjob_has_what_kuberay_needs() -> None:
    job = loaded(RAYJOB)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["ttlSecondsAfterFinished"] > 0
    assert spec["activeDeadlineSeconds"] > 0
    script, config = re.findall(r"/home/ray/paceline/(\S+)", spec["entrypoint"])
    assert (ROOT / script).is_file()
    assert (ROOT / config).is_file()
    environment = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert environment["PYTHONPATH"] == "/home/ray/paceline/platform"
    cluster = spec["rayClusterSpec"]
    assert cluster["rayVersion"] == locked("ray")
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    (group,) = cluster["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (0, 4)
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
