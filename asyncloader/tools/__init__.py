"""What ``python -m asyncloader`` does: it draws a graph, or says what each stage costs."""
