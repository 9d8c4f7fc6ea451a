"""Parts that a client is given when it needs them: documents, https, OpenTelemetry, webhooks, dual writes."""
