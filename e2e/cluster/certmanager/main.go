// Command certmanager is cert-manager's controller and CA injector in one process, for issuers that sign by themselves.
//
// Their own commands are modules of their own that no module proxy has; the parts are cert-manager's, unchanged. Its
// webhook, which checks what people write, is not among them.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	apireg "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	cmscheme "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/scheme"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/util"
)

const workers = 5

func main() {
	kubeconfig := flag.String("api-kubeconfig", "", "kubeconfig of the cluster")
	namespace := flag.String("cluster-resource-namespace", "cert-manager", "where the secrets of ClusterIssuers lie")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	options := controller.ContextOptions{Kubeconfig: *kubeconfig}
	options.ClusterResourceNamespace = *namespace
	if err := startControllers(ctx, options); err != nil {
		log.Fatal(err)
	}
	if err := inject(ctx, *kubeconfig); err != nil {
		log.Fatal(err)
	}
}

// startControllers starts every controller that is linked in; they end with the context.
func startControllers(ctx context.Context, options controller.ContextOptions) error {
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	for name, build := range controller.Known() {
		one, err := build(factory)
		if err != nil {
			return err
		}
		go func() {
			if err := one.Run(workers, ctx); err != nil {
				log.Fatalf("%s: %v", name, err)
			}
		}()
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	return nil
}

// inject runs the CA injector for webhook configurations until the context ends.
func inject(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config = util.RestConfigWithUserAgent(config, "cainjector") // the name it applies under
	ctrl.SetLogger(klog.Background())
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kscheme.AddToScheme, cmscheme.AddToScheme, apiext.AddToScheme, apireg.AddToScheme} {
		utilruntime.Must(add(scheme))
	}
	quiet := metricsserver.Options{BindAddress: "0"}
	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: quiet})
	if err != nil {
		return err
	}
	wanted := cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor:        map[string]bool{cainjector.ValidatingWebhookConfigurationName: true},
	}
	if err := cainjector.RegisterAllInjectors(ctx, manager, wanted); err != nil {
		return err
	}
	return manager.Start(ctx)
}
