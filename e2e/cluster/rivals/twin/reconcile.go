package main

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	owner        = client.FieldOwner("rollout-operator")
	statusOwner  = client.FieldOwner("rollout-operator-status")
	writesAtOnce = 8
)

type reconciler struct {
	client    client.Client
	templates *templates
	mutex     sync.Mutex
	done      map[string]bool // UIDs of runs whose children were made by this process: the caches may lag
}

// Reconcile makes what is missing, in the order of ours: record and keys, all but StatefulSets, StatefulSets, status, event.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	run := newRun()
	if err := r.client.Get(ctx, request.NamespacedName, run); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	by, _, _ := unstructured.NestedString(run.Object, "spec", "managedBy")
	suspended, _, _ := unstructured.NestedBool(run.Object, "spec", "suspend")
	if by != r.templates.ManagedBy || suspended || run.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, nil
	}
	if r.isDone(run) {
		return ctrl.Result{}, nil
	}
	if err := r.make(ctx, run); err != nil {
		return ctrl.Result{}, err
	}
	r.setDone(run)
	return ctrl.Result{}, r.tell(ctx, run)
}

func (r *reconciler) make(ctx context.Context, run *unstructured.Unstructured) error {
	var first, rest, workloads []*unstructured.Unstructured
	for _, text := range r.templates.Children {
		child, err := r.templates.render(text, run)
		if err != nil {
			return err
		}
		switch child.GetKind() {
		case "ConfigMap":
			first = append(first, child)
		case statefulSet:
			workloads = append(workloads, child)
		default:
			rest = append(rest, child)
		}
	}
	if err := r.makeSecret(ctx, run); err != nil {
		return err
	}
	for _, round := range [][]*unstructured.Unstructured{first, rest, workloads} {
		if err := r.apply(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) makeSecret(ctx context.Context, run *unstructured.Unstructured) error {
	secret, err := r.templates.render(r.templates.Secret, run)
	if err != nil {
		return err
	}
	data, err := issue(run.GetName(), run.GetNamespace())
	if err != nil {
		return err
	}
	secret.Object["data"] = data
	if err := r.client.Create(ctx, secret, owner); !errors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (r *reconciler) apply(ctx context.Context, round []*unstructured.Unstructured) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(writesAtOnce)
	for _, child := range round {
		group.Go(func() error {
			known := emptyOf(child.GetKind())
			if known != nil && r.client.Get(inner, client.ObjectKeyFromObject(child), known) == nil {
				return nil
			}
			return r.client.Apply(inner, client.ApplyConfigurationFromUnstructured(child), owner)
		})
	}
	return group.Wait()
}

// tell writes the status and the event.
func (r *reconciler) tell(ctx context.Context, run *unstructured.Unstructured) error {
	status, err := r.templates.render(r.templates.Status, run)
	if err != nil {
		return err
	}
	configuration := client.ApplyConfigurationFromUnstructured(status)
	if err := r.client.Status().Apply(ctx, configuration, statusOwner, client.ForceOwnership); err != nil {
		return err
	}
	event, err := r.templates.render(r.templates.Event, run)
	if err != nil {
		return err
	}
	if err := r.client.Create(ctx, event); !errors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (r *reconciler) isDone(run *unstructured.Unstructured) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.done[string(run.GetUID())]
}

func (r *reconciler) setDone(run *unstructured.Unstructured) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.done[string(run.GetUID())] = true
}
