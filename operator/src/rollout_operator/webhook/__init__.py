"""The admission webhook: a process of its own, which reads nothing and writes nothing in the cluster.

``python -m rollout_operator.webhook``. Its configuration is the chart's; its certificate is a mounted
Secret, which somebody else renews (docs/decisions/0007-who-issues-the-webhooks-certificate.md).
"""
