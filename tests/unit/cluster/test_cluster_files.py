"""The files that make a cluster: Ray takes them, and nothing in them is open, unpinned or secret."""

import re
from collections.abc import Iterator
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


def test_the_cluster_is_closed_and_pinned() -> None:
    tree = loaded(CLUSTER)
    assert not [text for text in texts(tree) if "0.0.0.0" in text or "::/0" in text]
    assert re.fullmatch(rf"rayproject/ray:{re.escape(locked('ray'))}-py311-(cpu|cu\d+)", tree["docker"]["image"])
    assert "--env RAY_AUTH_MODE=token" in tree["docker"]["run_options"]
    assert [place for place in tree["file_mounts"] if place.endswith(".ray/auth_token")]
    commands = "\n".join([*tree["head_start_ray_commands"], *tree["initialization_commands"]])
    for part in ("--dashboard-host=127.0.0.1", "mlflow server --host 127.0.0.1", "--publish 127.0.0.1:5432"):
        assert part in commands
    assert "--require-hashes" in "\n".join(tree["setup_commands"])
    kinds = tree["available_node_types"]
    assert kinds[tree["head_node_type"]]["resources"] == {"CPU": 0, "GPU": 0}, "the head trains"
    for kind in (*kinds.values(), tree):  # a worker's own commands go before those of all
        assert "mount" in "".join(kind.get("initialization_commands", ["mount"])), "no shared folder"
    for kind in kinds.values():
        config = kind["node_config"]
        assert config["SecurityGroupIds"], "Ray would make one that lets in SSH from everywhere"
        assert all(re.match(r"sg-[0-9a-f]+$", group) for group in config["SecurityGroupIds"])
        assert config["MetadataOptions"]["HttpTokens"] == "required"
        assert config["IamInstanceProfile"]["Name"].startswith("paceline-")
        assert re.match(r"ami-[0-9a-f]+$", config["ImageId"])
        assert all(disk["Ebs"]["Encrypted"] for disk in config.get("BlockDeviceMappings", []))
        assert "max_workers" in kind


def test_the_stack_has_no_aliases_which_cloudformation_refuses() -> None:
    tokens = yaml.scan(STACK.read_text())
    assert not [token for token in tokens if isinstance(token, yaml.AnchorToken | yaml.AliasToken)]


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
