"""Commands that reach a cluster, with the rights of the person of the kubeconfig."""
