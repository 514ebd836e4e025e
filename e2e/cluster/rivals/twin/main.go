// Command twin is a bare controller-runtime operator that makes the same children as ours: what the same work costs in Go.
//
// It knows nothing of a run's life: the children come from a file of templates, and a run that is no longer suspended
// gets all of them, a Secret with keys of its own, a status and an event.
package main

import (
	"context"
	"flag"
	"os"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	templates := flag.String("templates", "", "file of the children's templates")
	concurrency := flag.Int("concurrency", 16, "runs worked on at once")
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))
	if err := run(ctrl.SetupSignalHandler(), *templates, *concurrency); err != nil {
		ctrl.Log.Error(err, "ended")
		os.Exit(1)
	}
}

func run(ctx context.Context, file string, concurrency int) error {
	templates, err := readTemplates(file)
	if err != nil {
		return err
	}
	config := ctrl.GetConfigOrDie()
	unlimited(config)
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: metrics.Options{BindAddress: "0"},
		Cache:   cache.Options{ByObject: onlyOurs()},
	})
	if err != nil {
		return err
	}
	builder := ctrl.NewControllerManagedBy(manager).For(newRun()).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency})
	for _, kind := range watchedKinds() {
		builder = builder.Owns(kind)
	}
	reconciler := &reconciler{client: manager.GetClient(), templates: templates, done: map[string]bool{}}
	if err := builder.Complete(reconciler); err != nil {
		return err
	}
	return manager.Start(ctx)
}

// unlimited takes client-go's own limit away: the API server's is enough, as for the other contenders without one.
func unlimited(config *rest.Config) {
	config.QPS = -1
	config.UserAgent = "twin"
}

// onlyOurs keeps foreign objects out of the caches.
func onlyOurs() map[client.Object]cache.ByObject {
	selector := labels.SelectorFromSet(labels.Set{managedBy: "rollout-operator"})
	chosen := map[client.Object]cache.ByObject{}
	for _, kind := range watchedKinds() {
		chosen[kind] = cache.ByObject{Label: selector}
	}
	return chosen
}
