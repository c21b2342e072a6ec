"""The role and binding that grant a missing right."""

import yaml

from stoker.kube.kinds import KINDS
from stoker.kube.rights import binding_for, grant, role_for

RIGHTS = [("get", KINDS["Pod"]), ("list", KINDS["Pod"])]


def test_a_right_without_a_namespace_needs_a_cluster_role() -> None:
    role = role_for([("list", KINDS["Node"]), *RIGHTS], namespace="team")
    assert role["kind"] == "ClusterRole"
    assert role["rules"][1] == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
    assert binding_for(role, "ann")["kind"] == "ClusterRoleBinding"


def test_the_remedy_has_a_role_and_its_binding() -> None:
    line, _, text = grant(RIGHTS, namespace="team", name="stoker", user="ann").partition("\n")
    assert line == "Ask your cluster admin to apply this:"
    role, binding = yaml.safe_load_all(text)
    assert (role["kind"], binding["kind"]) == ("Role", "RoleBinding")
    assert binding["metadata"] == role["metadata"] == {"name": "stoker", "namespace": "team"}
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "stoker"}
    assert binding["subjects"][0]["name"] == "ann"


def test_a_service_account_is_the_subject_of_the_binding() -> None:
    role = role_for(RIGHTS, namespace="team")
    [subject] = binding_for(role, "system:serviceaccount:ci:bot")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "bot", "namespace": "ci"}


def test_an_unknown_user_name_is_left_to_be_filled_in() -> None:
    line, _, text = grant(RIGHTS, namespace="team", name="stoker", user=None).partition("\n")
    assert "YOUR-USER" in line
    assert "name: YOUR-USER" in text
