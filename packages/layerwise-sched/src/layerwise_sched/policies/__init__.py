"""The policies that come with the package; others register through the entry point `layerwise_sched.policies`."""
