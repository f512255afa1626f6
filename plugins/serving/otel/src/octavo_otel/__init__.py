"""OpenTelemetry tracing: one span for each request."""
