"""A fleet of made-up nodes, for demonstration and for tests of scale. Everything of it is marked as simulated."""
