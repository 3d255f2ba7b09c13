"""The files that make a cluster: Ray takes them, and nothing in them is open, unpinned or secret."""

import copy
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster.yaml"
STACK = ROOT / "configs" / "aws-stack.yaml"
RAYJOB = ROOT / "configs" / "kuberay-rayjob.yaml"
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
    found = [f"{name}: {fault}" for name, node in tree["available_node_types"].items() for fault in node_faults(node)]
    image = tree["docker"]["image"]
    if not re.fullmatch(rf"rayproject/ray:{re.escape(locked('ray'))}-py311-(cpu|cu\d+)", image):
        found.append(f"image {image}")
    if "--env RAY_AUTH_MODE=token" not in tree["docker"]["run_options"]:
        found.append("no token is asked for")
    if not any(place.endswith(".ray/auth_token") for place in tree["file_mounts"]):
        found.append("no token is mounted")
    commands = "\n".join([*tree["head_start_ray_commands"], *tree["initialization_commands"]])
    for part in ("--dashboard-host=127.0.0.1", "mlflow server --host 127.0.0.1", "--publish 127.0.0.1:5432"):
        if part not in commands:
            found.append(f"{part} is missing")
    kinds = [*tree["available_node_types"].values(), tree]  # a worker's own commands go before those of all
    if not all("mount" in "".join(kind.get("initialization_commands", ["mount"])) for kind in kinds):
        found.append("a node without the shared folder")
    if "--require-hashes" not in "\n".join(tree["setup_commands"]):
        found.append("packages are not those of requirements.lock")
    if any("0.0.0.0" in text or "::/0" in text for text in texts(tree)):
        found.append("open to the world")
    if tree["available_node_types"][tree["head_node_type"]]["resources"] != {"CPU": 0, "GPU": 0}:
        found.append("the head trains")
    return found


def node_faults(node: Tree) -> Iterator[str]:
    config = node["node_config"]
    if not all(re.match(r"sg-[0-9a-f]+$", group) for group in config.get("SecurityGroupIds") or ["none"]):
        yield "no security group of its own"  # Ray would make one that lets in SSH from everywhere
    if config.get("MetadataOptions", {}).get("HttpTokens") != "required":
        yield "the metadata service answers without a token"
    if not config.get("IamInstanceProfile", {}).get("Name", "").startswith("paceline-"):
        yield "no role of its own"
    if not re.match(r"ami-[0-9a-f]+$", config.get("ImageId", "")):
        yield "no image of the machine"
    if "max_workers" not in node:
        yield "no limit"
    if not all(disk["Ebs"].get("Encrypted") for disk in config.get("BlockDeviceMappings", [])):
        yield "a disk that is not encrypted"


@pytest.mark.filterwarnings("ignore")
def test_ray_takes_the_cluster() -> None:
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
    assert locked("ray") == version("ray")


def test_no_command_ends_the_shell_that_runs_it() -> None:
    """Ray runs each as `bash -c '... (COMMAND)'`: a pattern that finds itself ends it."""
    tree = loaded(CLUSTER)
    commands = [*tree["head_start_ray_commands"], *tree["worker_start_ray_commands"]]
    killing = [command for command in commands if "pkill" in command]
    assert len(killing) == 2
    for command in killing:
        shown = command.replace("pkill -f", "pgrep -f")
        wrapped = ["bash", "-c", f"echo $$; true && (echo $BASHPID; {shown})"]
        shell, within, *found = subprocess.run(wrapped, capture_output=True, text=True).stdout.split()
        assert not {shell, within} & set(found), command


def test_cloudformation_gets_no_aliases() -> None:
    tokens = yaml.scan(STACK.read_text())
    assert not [token for token in tokens if isinstance(token, yaml.AnchorToken | yaml.AliasToken)]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda tree: tree["available_node_types"]["cpu"]["node_config"].pop("SecurityGroupIds"), "security group"),
        (lambda tree: tree["available_node_types"]["gpu"]["node_config"].pop("MetadataOptions"), "without a token"),
        (lambda tree: tree["available_node_types"]["head"].update(resources={"CPU": 4}), "the head trains"),
        (lambda tree: tree["available_node_types"]["gpu"].pop("max_workers"), "no limit"),
        (lambda tree: tree["available_node_types"]["cpu"].update(initialization_commands=[]), "shared folder"),
        (lambda tree: tree["docker"].update(image="rayproject/ray:latest"), "image"),
        (lambda tree: tree["docker"]["run_options"].remove("--env RAY_AUTH_MODE=token"), "no token"),
        (lambda tree: tree["file_mounts"].pop("~/.ray/auth_token"), "no token is mounted"),
        (lambda tree: tree["head_start_ray_commands"].append("x --dashboard-host=0.0.0.0"), "open to the world"),
        (lambda tree: tree.update(head_start_ray_commands=["ray start --head"]), "mlflow server"),
    ],
)
def test_what_is_open_or_unpinned_is_seen(change: Callable[[Tree], Any], fault: str) -> None:
    tree = copy.deepcopy(loaded(CLUSTER))  # what several nodes share is one object otherwise
    tree = yaml.safe_load(yaml.dump(tree, Dumper=_Unshared))
    change(tree)
    assert any(fault in each for each in faults_of_cluster(tree))


class _Unshared(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def test_no_file_has_a_secret() -> None:
    assert [file.name for file in FILES if SECRET.search(file.read_text())] == []
    assert SECRET.search("password: 0123456789abcdef0123")
    assert SECRET.search("key: AKIA0123456789ABCDEF")


def test_few_lines_are_to_be_changed() -> None:
    counts = {file.name: len(re.findall(r"# CHANGE\b", file.read_text())) for file in FILES}
    assert counts == {"cluster.yaml": 6, "aws-stack.yaml": 0, "kuberay-rayjob.yaml": 4}


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
