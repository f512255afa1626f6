"""Native CPU kernels for Octavo."""
