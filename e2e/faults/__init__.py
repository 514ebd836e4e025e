"""A proxy in front of an API server that makes chosen calls fail, for tests of clients.

    with running(kubeconfig) as proxy:
        proxy.inject(Rule(verbs={"apply"}, resources={"statefulsets"}, first=2, fault=Answer(status=409)))
        client_under_test(proxy.kubeconfig(token="..."))
        proxy.calls()

It refuses upgrades (exec, port-forward): those go to the API server itself.
"""
