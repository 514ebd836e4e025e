"""The webhook's certificate, made and renewed by a process of its own (``SelfManaged``).

``python -m rollout_operator.rotation``. It may read and write one Secret and the ``caBundle`` of one
ValidatingWebhookConfiguration, by name, and nothing else; the webhook itself may do neither
(docs/decisions/0007-who-issues-the-webhooks-certificate.md). With cert-manager it does not run.
"""
