"""Digests of our own fields: defaults and foreign fields do not count, changed ones of ours do."""

import copy

from rollout_api import names
from rollout_operator.cache.children import parse_child
from rollout_operator.kube.managed_fields import differences, owned_digest, project, seal, writer_of

MANIFEST = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "s", "namespace": "n", "labels": {"a": "1"}},
    "spec": {"clusterIP": "None", "ports": [{"name": "api", "port": 1, "protocol": "TCP"}]},
}
FIELDS = {
    "f:metadata": {
        "f:labels": {"f:a": {}},
        "f:annotations": {"f:rollout.dev/applied": {}},
    },
    "f:spec": {
        "f:clusterIP": {},
        "f:ports": {
            'k:{"port":1,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}}
        },
    },
}


def live():
    found = copy.deepcopy(seal(MANIFEST))
    found["metadata"] |= {
        "uid": "u",
        "resourceVersion": "5",
        "managedFields": [
            {"manager": "rollout-operator", "operation": "Apply", "fieldsV1": FIELDS, "time": "1"},
            {"manager": "meddler", "operation": "Update", "fieldsV1": {}, "time": "2"},
        ],
    }
    found["spec"]["sessionAffinity"] = "None"
    found["spec"]["ports"][0]["targetPort"] = 1
    return found


def sealed(found):
    return found["metadata"]["annotations"]["rollout.dev/applied"]


def test_defaults_of_the_server_are_no_drift():
    assert owned_digest(live()) == sealed(live())


def test_fields_of_others_are_no_drift():
    found = live()
    found["metadata"]["labels"]["team"] = "x"
    found["spec"]["ports"].append({"name": "other", "port": 9, "protocol": "TCP"})
    assert owned_digest(found) == sealed(found)


def test_a_changed_field_of_ours_is_drift():
    found = live()
    found["metadata"]["labels"]["a"] = "2"
    assert owned_digest(found) != sealed(found)


def test_a_field_that_another_manager_took_is_drift():
    found = live()
    taken = copy.deepcopy(FIELDS)
    del taken["f:spec"]["f:clusterIP"]
    found["metadata"]["managedFields"][0]["fieldsV1"] = taken
    assert owned_digest(found) != sealed(found)


def test_without_our_fields_everything_is_drift():
    found = live()
    found["metadata"]["managedFields"] = []
    assert owned_digest(found) != sealed(found)
    assert project({"a": 1}, {}) == {"a": 1}


def child_of(found, version, known=None, **flags):
    found["metadata"] |= {
        "resourceVersion": str(version),
        "labels": found["metadata"]["labels"] | {names.LABEL_RUN: "r"},
        "ownerReferences": [
            {
                "apiVersion": "rollout.dev/v1alpha1",
                "kind": "RolloutRun",
                "uid": "run",
                "controller": True,
            }
        ],
    }
    return parse_child("Service", found, known, **flags)


def test_what_the_server_makes_of_our_own_write_is_no_drift():
    found = live()
    found["spec"]["ports"][0]["port"] = "one, as the server writes it"
    child = child_of(found, 5, written=True)
    assert child.owned == child.digest
    found["spec"]["sessionAffinity"] = "ClientIP"
    assert child_of(found, 6, child).owned == child.digest


def test_a_field_taken_by_another_is_found_at_the_next_version():
    child = child_of(live(), 5, written=True)
    found = live()
    taken = copy.deepcopy(FIELDS)
    del taken["f:spec"]["f:clusterIP"]
    found["metadata"]["managedFields"][0]["fieldsV1"] = taken
    assert child_of(found, 6, child).owned != child.digest


def test_values_are_compared_again_when_our_entry_is_younger():
    child = child_of(live(), 5, written=True)
    found = live()
    found["spec"]["clusterIP"] = "10.0.0.1"
    found["metadata"]["managedFields"][0]["time"] = "3"
    assert child_of(found, 6, child).owned != child.digest


def test_a_child_that_was_never_seen_is_compared_in_full():
    found = live()
    found["spec"]["clusterIP"] = "10.0.0.1"
    child = child_of(found, 5)
    assert child.owned not in ("", child.digest)


def test_differences_name_the_path_and_forgive_additions():
    found = live()
    assert list(differences(MANIFEST, found)) == []
    found["spec"]["ports"][0]["port"] = 2
    assert list(differences(MANIFEST, found)) == ["spec.ports[api].port"]
    del found["spec"]["clusterIP"]
    assert "spec.clusterIP" in list(differences(MANIFEST, found))


def test_the_other_writer_is_named():
    assert writer_of(live()) == "meddler"
