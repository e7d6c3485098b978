"""HBM: an event-driven model of channels, banks and rows, its analytic twin, and energy tables."""
