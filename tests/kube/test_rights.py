"""What an administrator is asked for when a right is missing."""

import yaml

from stoker.kube.kinds import KINDS
from stoker.kube.rights import binding_for, grant, role_for

RIGHTS = [("get", KINDS["Pod"]), ("list", KINDS["Pod"])]


def test_a_right_that_is_of_no_namespace_needs_a_cluster_role() -> None:
    role = role_for([("list", KINDS["Node"]), *RIGHTS], namespace="team")
    assert role["kind"] == "ClusterRole"
    assert role["rules"][1] == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
    assert binding_for(role, "ann")["kind"] == "ClusterRoleBinding"


def test_the_role_comes_with_the_binding_that_gives_it_to_you() -> None:
    said, _, text = grant(RIGHTS, namespace="team", name="stoker", user="ann").partition("\n")
    assert said == "Ask its administrator for this:"
    role, binding = yaml.safe_load_all(text)
    assert (role["kind"], binding["kind"]) == ("Role", "RoleBinding")
    assert binding["metadata"] == role["metadata"] == {"name": "stoker", "namespace": "team"}
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "stoker"}
    assert binding["subjects"][0]["name"] == "ann"


def test_a_service_account_is_bound_as_one() -> None:
    role = role_for(RIGHTS, namespace="team")
    [subject] = binding_for(role, "system:serviceaccount:ci:bot")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "bot", "namespace": "ci"}


def test_a_user_whom_the_server_does_not_name_is_left_to_be_filled_in() -> None:
    said, _, text = grant(RIGHTS, namespace="team", name="stoker", user=None).partition("\n")
    assert "YOUR-USER" in said
    assert "name: YOUR-USER" in text
