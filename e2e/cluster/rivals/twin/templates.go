package main

import (
	"encoding/json"
	"os"
	"strings"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	managedBy   = "app.kubernetes.io/managed-by"
	statefulSet = "StatefulSet"
)

// templates are whole objects as JSON with a placeholder run's name, namespace and UID in them.
type templates struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	UID       string            `json:"uid"`
	ManagedBy string            `json:"managedBy"`
	Children  []json.RawMessage `json:"children"`
	Secret    json.RawMessage   `json:"secret"`
	Status    json.RawMessage   `json:"status"`
	Event     json.RawMessage   `json:"event"`
}

func readTemplates(file string) (*templates, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	found := &templates{}
	return found, json.Unmarshal(text, found)
}

// render puts a run into a template.
func (t *templates) render(text json.RawMessage, run *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	words := strings.NewReplacer(t.Name, run.GetName(), t.Namespace, run.GetNamespace(), t.UID, string(run.GetUID()))
	made := &unstructured.Unstructured{}
	return made, json.Unmarshal([]byte(words.Replace(string(text))), &made.Object)
}

func newRun() *unstructured.Unstructured {
	run := &unstructured.Unstructured{}
	run.SetGroupVersionKind(schema.GroupVersionKind{Group: "rollout.dev", Version: "v1alpha1", Kind: "RolloutRun"})
	return run
}

// watchedKinds are the kinds of the children; Secrets are fetched by name and never listed.
func watchedKinds() []client.Object {
	return []client.Object{
		&core.ConfigMap{}, &core.Service{}, &core.ServiceAccount{}, &apps.StatefulSet{}, &rbac.Role{},
		&rbac.RoleBinding{}, &networking.NetworkPolicy{}, &policy.PodDisruptionBudget{},
	}
}

// emptyOf is an object for the cache to fill, or nil for a kind that is not cached.
func emptyOf(kind string) client.Object {
	switch kind {
	case "ConfigMap":
		return &core.ConfigMap{}
	case "Service":
		return &core.Service{}
	case "ServiceAccount":
		return &core.ServiceAccount{}
	case statefulSet:
		return &apps.StatefulSet{}
	case "Role":
		return &rbac.Role{}
	case "RoleBinding":
		return &rbac.RoleBinding{}
	case "NetworkPolicy":
		return &networking.NetworkPolicy{}
	case "PodDisruptionBudget":
		return &policy.PodDisruptionBudget{}
	}
	return nil
}
